"""What a finished run or comparison says of itself, from `results.json` alone.

    outcomes, samples, differences, traffic, facts -> sections -> tables (Markdown)
                                                               -> html (with the figures of plots and maps)

Every table is built once, as data, so the page, the Markdown and the terminal show the same numbers.
Nothing here trains, evaluates or opens a vault: a report can be made again from the file at any time.
"""
