"""The report of a finished run or comparison, built from `results.json` alone.

    score_tables, few_shot, differences, traffic, run_metadata -> sections -> tables (Markdown)
                                                                           -> html (with the figures of plots)

Each table is built once, as data, so that the HTML page, the Markdown and the terminal show the same numbers. Only
`prompt_continuations` opens a run; everything else can be regenerated from the file at any time.
"""
