"""Values in fewer bytes on their way between nodes.

    schemes     settings of each scheme, and chains such as `topk:0.1+fp16`
    settings    which chain on which link of which table
    coding      rows to a packet and back
    packets     the packet's form, and its checks
    lossless    Zstandard, an extra
    kept        what lossy schemes did not say yet, by row
    encoder     one table's values on one link

Arrays in, arrays out: this knows no tables, sockets or nodes. Loops are in `kv.kernels`.
"""
