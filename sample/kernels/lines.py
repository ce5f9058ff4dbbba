# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False
# mypy: disallow-untyped-decorators=False, disallow-incomplete-defs=False
# Kernel arguments are untyped on purpose: their docstrings give dtype and shape.
"""Find fields and numbers in blocks of text."""

from sample.kernels.jit import kernel

TAB, NEWLINE, RETURN, SPACE, COMMA, DELETE = 9, 10, 13, 32, 44, 127
WRONG_COUNT, CONTROL, NOT_ASCII, NOT_A_NUMBER = 1, 2, 4, 8  # what can be wrong with a line


@kernel
def _is_blank(byte):
    """Whether it is white space; other control characters are damage, not margin."""
    return byte == SPACE or TAB <= byte <= RETURN


@kernel
def split_lines(block, n_fields, starts, ends, lines, faults, first_line):
    """Find the fields of every line that is not blank.

    block: uint8, whole lines; starts, ends: int32 (rows, n_fields + 1), bytes of each field and,
    last, of the line without the white space around it; lines: int64 (rows,), its number;
    faults: uint8 (rows,). Returns (rows found, lines seen).
    """
    rows = 0
    line = first_line
    begin = 0
    while begin < block.size:
        stop = begin
        while stop < block.size and block[stop] != NEWLINE:
            stop += 1
        low, high = begin, stop
        while low < high and _is_blank(block[low]):
            low += 1
        while high > low and _is_blank(block[high - 1]):
            high -= 1
        if high > low:
            fault = 0
            field = 0
            starts[rows, 0] = low
            for at in range(low, high):
                byte = block[at]
                if byte == COMMA:
                    if field < n_fields - 1:
                        ends[rows, field] = at
                        starts[rows, field + 1] = at + 1
                    field += 1
                elif byte < SPACE or byte == DELETE:
                    fault |= CONTROL
                elif byte >= 128:
                    fault |= NOT_ASCII
            if field != n_fields - 1:
                fault |= WRONG_COUNT
            ends[rows, n_fields - 1] = high
            starts[rows, n_fields] = low
            ends[rows, n_fields] = high
            lines[rows] = line
            faults[rows] = fault
            rows += 1
        line += 1
        begin = stop + 1
    return rows, line - first_line


@kernel
def parse_integers(block, starts, ends, values, faults):
    """Decimal integers of at most 15 digits, exact in float64 too; others set NOT_A_NUMBER.

    starts, ends: int32 (n,); values: int64 (n,); faults: uint8 (n,), lines with one are left out.
    """
    for row in range(starts.size):
        if faults[row]:
            continue
        at, end = starts[row], ends[row]
        negative = at < end and block[at] == 45
        if negative:
            at += 1
        value = 0
        fine = 0 < end - at <= 15
        while fine and at < end:
            digit = int(block[at]) - 48
            fine = 0 <= digit <= 9
            value = value * 10 + digit
            at += 1
        values[row] = -value if negative else value
        if not fine:
            faults[row] |= NOT_A_NUMBER


@kernel
def copy_pieces(block, starts, ends, offsets, out):
    """Copy block[starts[i]:ends[i]] to out[offsets[i]:offsets[i + 1]]."""
    for row in range(starts.size):
        to = offsets[row]
        for at in range(starts[row], ends[row]):
            out[to] = block[at]
            to += 1
