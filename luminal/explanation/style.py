"""How the page looks: one style sheet for light and dark, wide and narrow.

In: nothing. Out: `STYLE`.
"""

__all__ = ["STYLE"]

STYLE = """
:root{color-scheme:light dark;--ink:#1c2430;--soft:#5d6878;--line:#e1e5ec;--back:#f6f7f9;
--card:#fff;--well:#f3f5f8;--memory:#2f6fde;--arithmetic:#c2571a;--roof:#8a94a6;--mark:#fff3d6}
@media(prefers-color-scheme:dark){:root{--ink:#e4e8ee;--soft:#9aa5b5;--line:#2c343f;--back:#0f1318;
--card:#171c23;--well:#10151b;--memory:#6ea0ff;--arithmetic:#f0935a;--roof:#768194;--mark:#3a3117}}
*{box-sizing:border-box}html{scroll-behavior:smooth}
body{margin:0;background:var(--back);color:var(--ink);
font:16px/1.55 system-ui,"Segoe UI",Roboto,"Noto Sans","DejaVu Sans",sans-serif}
main{max-width:1080px;margin:0 auto;padding:36px 20px 90px}
h1{font-size:28px;line-height:1.25;letter-spacing:-.01em;margin:0 0 6px;overflow-wrap:anywhere}
h2{font-size:20px;margin:44px 0 4px}h3{font-size:15px;margin:18px 0 6px}
p{margin:6px 0}.lead{color:var(--soft);max-width:70ch}.soft{color:var(--soft)}
h2+p{color:var(--soft);margin:0 0 10px;max-width:76ch}
section,.kernel{background:var(--card);border:1px solid var(--line);border-radius:12px;
padding:16px 18px;margin:10px 0}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(146px,1fr));gap:10px;
margin:22px 0 0}
.tile{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:10px 14px;
font-size:13.5px;color:var(--soft)}
.tile b{display:block;font-size:19px;font-weight:600;color:var(--ink);
font-variant-numeric:tabular-nums;white-space:nowrap}
a{color:inherit;text-decoration:none}
.bars{display:grid;grid-template-columns:minmax(60px,max-content) minmax(0,1fr) max-content;
gap:3px 14px;align-items:center;font-variant-numeric:tabular-nums}
.bars a{display:contents}.bars .name{font-weight:600;white-space:nowrap}
.bars .gist{display:block;color:var(--soft);font-size:12.5px;white-space:nowrap;overflow:hidden;
text-overflow:ellipsis;line-height:1.3;margin-top:3px}
.bars .cell{padding:4px 0;min-width:0}.bars .time{text-align:right;white-space:nowrap}
.bars small{color:var(--soft);font-size:12.5px}
.track{display:block;height:12px;border-radius:3px;background:var(--tint);width:var(--w);
min-width:2px;position:relative;overflow:hidden}
.track i{position:absolute;inset:0;width:var(--s);background:var(--tone);border-radius:3px}
.memory{--tone:var(--memory);--tint:color-mix(in srgb,var(--memory) 26%,transparent)}
.arithmetic{--tone:var(--arithmetic);--tint:color-mix(in srgb,var(--arithmetic) 26%,transparent)}
.keys{display:flex;flex-wrap:wrap;gap:2px 16px;font-size:14px}
.key{display:inline-block;width:11px;height:11px;border-radius:3px;background:var(--tone);
margin-right:6px}.key.pale{background:var(--tint)}
pre{overflow:auto;max-height:480px;background:var(--well);border-radius:8px;padding:10px 12px;
margin:6px 0 10px;font:13px/1.5 ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace;
tab-size:2}
details.fold{margin:4px 0}summary{cursor:pointer}
details.fold>summary{color:var(--soft);font-size:14.5px;padding:3px 0}
details.fold>summary:hover{color:var(--ink)}
.kernel{padding:0}.kernel>summary{padding:12px 18px;display:grid;align-items:center;
grid-template-columns:minmax(90px,max-content) minmax(0,1fr) max-content;gap:2px 16px;
list-style:none;font-variant-numeric:tabular-nums}
.kernel>summary::-webkit-details-marker{display:none}
.kernel>summary b::before{content:"▸";display:inline-block;width:1.1em;color:var(--soft)}
.kernel[open]>summary b::before{content:"▾"}
.kernel>summary .gist{color:var(--soft);font-size:14px;overflow-wrap:anywhere}
.kernel>summary .num{text-align:right}.kernel>summary .num small{color:var(--soft)}
.kernel .body{padding:2px 18px 14px;border-top:1px solid var(--line);scroll-margin-top:70px}
.kernel:has(:target){border-color:var(--tone);box-shadow:0 0 0 1px var(--tone)}
.rate{display:flex;flex-wrap:wrap;gap:4px 22px;margin:12px 0 4px;font-variant-numeric:tabular-nums}
.rate b{font-weight:600}.pill{border:1px solid var(--line);border-radius:99px;padding:0 9px;
font-size:12.5px;color:var(--soft);white-space:nowrap}
.lost{margin:2px 0}.lost>summary{display:grid;
grid-template-columns:minmax(80px,160px) minmax(0,1fr);gap:12px;align-items:center;font-size:14px;
list-style:none;padding:2px 0}.lost>summary::-webkit-details-marker{display:none}
.lost .track{background:var(--tint)}
table{border-collapse:collapse;width:100%;font-size:14.5px}td{padding:4px 8px 4px 0;
border-bottom:1px solid var(--line);overflow-wrap:anywhere}tr:last-child td{border:0}
td.n{text-align:right;font-variant-numeric:tabular-nums;padding-right:0}
.two{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,320px),1fr));gap:12px}
.two section{margin:0;min-width:0}
.scroll{overflow:auto;max-height:560px;border-radius:8px;background:var(--well);padding:8px}
.scroll svg{margin:0 auto}
svg{max-width:none;height:auto;display:block}.wide svg{width:100%}
svg text{font:12.5px system-ui,"DejaVu Sans",sans-serif;fill:var(--soft)}
svg .end{text-anchor:end}svg .mid{text-anchor:middle}
svg .label{fill:var(--ink);font-size:12px;pointer-events:none}
svg .roofed{fill:var(--ink);font-weight:600}
.grid{stroke:var(--line)}.roof{fill:none;stroke:var(--roof);stroke-width:2}
.dot{fill:var(--tone);fill-opacity:.5;stroke:var(--tone)}.dot:hover{fill-opacity:.9}
.edge{fill:none;stroke:var(--soft);stroke-opacity:.4}
.box{fill:var(--card)}.node{fill:var(--tone,var(--soft));stroke:var(--tone,var(--soft))}
.leaf{--tone:#8a94a6}.unary{--tone:#3b82c4}.binary{--tone:#4aa06a}.reduce{--tone:#d0672f}
.index,.source{--tone:#8d62c9}
@media(max-width:640px){main{padding:22px 12px 60px}section{padding:12px}
body{font-size:15.5px}.kernel>summary{grid-template-columns:1fr max-content;padding:11px 12px}
.kernel>summary .gist{grid-column:1/-1;grid-row:2}.kernel .body{padding:2px 12px 12px}
.bars{gap:2px 10px}pre{font-size:12px}.wide svg text{font-size:23px}}
@media print{.scroll,pre{max-height:none}}
"""
