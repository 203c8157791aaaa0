"""How the page looks: one sheet for light and dark, in the page itself. Pure.

What always holds: states differ in lightness as well as in hue, and the body never scrolls sideways: what is wide
scrolls in its own box.

Does not cover: printing in colours; a browser's own rules do.
"""

from __future__ import annotations

from .states import MEANINGS

STYLE = """
:root { color-scheme: light dark;
  --bg: #fbfbfa; --card: #fff; --ink: #1c1d20; --dim: #5d626b; --line: #dcdee2; --code: #f3f3f1; --own: #fff3cf;
  --culprit: #c8102e; --failed: #e8762c; --stopped: #7b3fa0; --waits: #a9c6e8; --moves: #4d9f61; --finished: #c9cdd3;
  --other: #8a929e; --untold: #eceef0; --c0: #4e79a7; --c1: #e8a33d; --c2: #76b7a2; --c3: #b07aa1; --c4: #9c755f;
  --c5: #86a94f; --c6: #d37295; --c7: #8a929e; }
@media (prefers-color-scheme: dark) { :root {
  --bg: #16181b; --card: #1e2125; --ink: #e7e8ea; --dim: #a3a9b3; --line: #363b42; --code: #262a2f; --own: #4a3d12;
  --culprit: #ff5a6e; --failed: #f08a45; --stopped: #b782dc; --waits: #3f628c; --moves: #58b06f; --finished: #565d67;
  --other: #7d8591; --untold: #2a2e34; --c0: #6f9bca; --c1: #d9962f; --c2: #5fa08c; --c3: #b583a7; --c4: #a8826d;
  --c5: #8fb257; --c6: #d98aa6; --c7: #8a929e; } }
* { box-sizing: border-box; }
html { background: var(--bg); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
body { margin: 0 auto; max-width: 1100px; padding: 20px 16px 60px; overflow-wrap: anywhere; }
h1 { font-size: 1.45rem; line-height: 1.3; margin: 0 0 .6rem; }
h2 { font-size: 1.05rem; margin: 0 0 .7rem; } h3 { font-size: .95rem; margin: .9rem 0 .3rem; }
section, header { background: var(--card); border: 1px solid var(--line); border-radius: 8px; margin: 0 0 16px;
  padding: 16px 18px; }
header { border-left: 6px solid var(--culprit); }
p { margin: .4rem 0; } .dim { color: var(--dim); } .verdict { font-size: 1.08rem; }
.tag { border: 1px solid var(--line); border-radius: 99px; font-size: .82rem; padding: 1px 9px; white-space: nowrap; }
pre { background: var(--code); border-radius: 6px; font: 13px/1.5 ui-monospace, monospace; margin: .5rem 0;
  overflow-x: auto; padding: 9px 11px; }
pre .own { background: var(--own); display: inline-block; font-weight: 600; min-width: 100%; }
ul { margin: .3rem 0; padding-left: 1.2rem; } ul.legend { list-style: none; margin: .8rem 0 0; padding: 0; }
ul.row { display: flex; flex-wrap: wrap; gap: 2px 18px; }
.key { border: 1px solid var(--line); border-radius: 3px; display: inline-block; height: .85em; margin-right: .5em;
  vertical-align: -.08em; width: .85em; }
.tickkey { border: 0; width: 2px; height: 1em; } .k-step { background: var(--ink); } .k-beat { background: var(--dim); }
.k-saved { color: var(--ink); margin-right: .5em; }
details { border-top: 1px solid var(--line); padding: .55rem 0; } details:first-of-type { border-top: 0; }
summary { cursor: pointer; font-weight: 600; } summary:focus-visible, .box:focus-visible, pre:focus-visible {
  outline: 2px solid var(--c0); outline-offset: 2px; }
.box { overflow-x: auto; } table { border-collapse: collapse; font-size: .92rem; width: 100%; }
th, td { border-bottom: 1px solid var(--line); padding: 5px 14px 5px 0; text-align: left; vertical-align: top; }
th { color: var(--dim); font-weight: 600; white-space: nowrap; } td { overflow-wrap: normal; }
td:first-child { min-width: 6.5em; }
svg { display: block; height: auto; width: 100%; } svg text { fill: var(--ink); font: 13px system-ui, sans-serif; }
svg.time { min-width: 700px; }
.grid text { text-anchor: middle; } .grid .n-waits, .grid .n-finished, .grid .n-untold { fill: var(--ink); }
.grid .n-culprit, .grid .n-stopped { fill: #fff; font-weight: 700; } .grid .n-failed, .grid .n-moves, .grid .n-other
  { fill: #111; } .grid text.row { fill: var(--dim); font-size: 11px; text-anchor: end; }
.mark { stroke: var(--ink); stroke-width: 2.5; } svg .mark.hollow { fill: none; }
.axis { stroke: var(--line); stroke-width: 1; } .tick { fill: var(--dim) !important; text-anchor: middle; }
svg .tick { font-size: 12px; } .lane { text-anchor: end; } svg .lane.culprit { fill: var(--culprit); font-weight: 700; }
.step { stroke: var(--ink); stroke-width: 1.4; } .beat { stroke: var(--dim); stroke-width: 1; }
.saved { fill: var(--ink); stroke: var(--card); stroke-width: 1; }
.unknown { stroke: var(--line); stroke-width: 2; stroke-dasharray: 2 5; }
"""

_CLASSES = [(f"c{number}", f"c{number}") for number in range(8)] + [
    (f"s-{state}", state) for state in MEANINGS
]
STYLE += "".join(
    f".{name} {{ background: var(--{colour}); fill: var(--{colour}); }}\n" for name, colour in _CLASSES
)
