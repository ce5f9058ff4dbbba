"""The loops of the join that are neither SQL nor array arithmetic.

    lines   fields and numbers in blocks of text
    walks   along the impressions of users and what they did
    words   numbered words to texts

Plain loops over arrays that the caller owns; they write their results in place and raise nothing.
"""
