"""The disk tier of the KV cache: blocks that outlive the process, for all models of a machine.

A directory of private files, which many processes read and one writes:

    lock                     held by the writer
    index.sqlite             which page lies where (page_index.py); can be made again from the pages
    segment-00000001.pages   pages one after the other (page_format.py, page_file.py)

A page is one KV block with everything that is needed to know it: fingerprint, key, parent, tokens,
checksums. The index only finds pages. Whatever it says, a page is served if the page itself is what
was asked for, so a damaged, old or foreign index costs time and never an answer.

Order of writing: page bytes, `fdatasync`, index row; and away: index row, then file. So at every
moment each row names a whole page, or a file that is gone, which is a miss.
"""
