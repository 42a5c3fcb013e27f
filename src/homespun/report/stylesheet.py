"""The page's style sheet."""

from __future__ import annotations

from homespun.report.figure_style import FONT, TEXT_COLOR

STYLE = f"""
:root {{ color-scheme: light; }}
* {{ box-sizing: border-box; }}
body {{ margin: 0 auto; max-width: 1080px; padding: 32px 24px 64px; background: #fff; color: {TEXT_COLOR};
  font: 16px/1.55 {FONT}; overflow-wrap: break-word; }}
h1 {{ font-size: 30px; line-height: 1.2; margin: 0 0 4px; letter-spacing: -0.01em; }}
h2 {{ font-size: 21px; line-height: 1.3; margin: 0 0 10px; letter-spacing: -0.005em; }}
h3 {{ font-size: 15px; margin: 28px 0 8px; }}
p {{ margin: 0 0 10px; max-width: 76ch; }}
.subtitle {{ color: #5a6472; }}
nav {{ display: flex; flex-wrap: wrap; gap: 4px 18px; margin-top: 14px; font-size: 14px; }}
a {{ color: #2563c9; text-decoration: none; }}
a:hover {{ text-decoration: underline; }}
section {{ border-top: 1px solid #e1e5eb; margin-top: 36px; padding-top: 26px; }}
.note {{ color: #5a6472; font-size: 14px; line-height: 1.5; margin-top: 10px; }}
.scroll {{ overflow-x: auto; margin-top: 14px; }}
table {{ border-collapse: collapse; font-size: 14.5px; min-width: 60%; font-variant-numeric: tabular-nums; }}
th {{ text-align: left; font-weight: 600; color: #5a6472; border-bottom: 2px solid #cfd5de;
  vertical-align: bottom; }}
th, td {{ padding: 7px 22px 7px 0; }}
th:last-child, td:last-child {{ padding-right: 0; }}
td {{ border-bottom: 1px solid #eceff3; vertical-align: top; }}
.number {{ text-align: right; }}
td.number {{ white-space: nowrap; }}
.interval {{ display: block; color: #5a6472; font-size: 12.5px; }}
details {{ margin-top: 28px; }}
summary {{ cursor: pointer; font-size: 15px; font-weight: 600; }}
.legend {{ display: flex; flex-wrap: wrap; gap: 4px 20px; list-style: none; margin: 14px 0 2px;
  padding: 0; font-size: 14px; }}
.legend li {{ display: flex; align-items: center; gap: 7px; }}
.swatch {{ display: inline-block; flex: none; width: 20px; border-top: 3px solid; }}
.swatch.dashed {{ border-top: 2px dashed; }}
.swatch.dot {{ width: 11px; height: 11px; border: 0; border-radius: 50%; background: currentColor; }}
.swatch.ring {{ width: 7px; height: 7px; border: 2px solid currentColor; border-radius: 50%; }}
.figures {{ margin: 6px 0 18px; }}
.pairs {{ display: grid; grid-template-columns: 1fr 1fr; gap: 18px 24px; }}
figure {{ margin: 0; min-width: 0; }}
figcaption {{ font-size: 14px; font-weight: 600; margin: 8px 0 4px; }}
footer {{ margin-top: 48px; color: #5a6472; font-size: 13px; }}
@media (max-width: 720px) {{
  body {{ padding: 20px 16px 48px; }}
  h1 {{ font-size: 25px; }}
  h2 {{ font-size: 19px; }}
  .pairs {{ grid-template-columns: 1fr; }}
  th, td {{ padding-right: 14px; }}
  th:first-child, td:first-child {{ position: sticky; left: 0; background: #fff; }}
  table {{ font-size: 13.5px; min-width: 100%; }}
}}
@media print {{ nav {{ display: none; }} section, figure {{ break-inside: avoid; }} }}
"""
