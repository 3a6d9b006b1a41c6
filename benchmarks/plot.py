"""Bars as SVG, without any library."""

from html import escape


def bars(path, title, rows, line=None, unit=""):
    """Writes one bar per (name, value); `line` marks a value to compare with."""
    rows = [(name, value) for name, value in rows if value is not None]
    most = max([value for _, value in rows] + [line or 0]) * 1.1 or 1
    left, width, high = 250, 560, 22
    height = 56 + high * len(rows) + 14
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 80}" height="{height}"']
    out[0] += ' font-family="DejaVu Sans, Verdana, sans-serif" font-size="12">'
    out.append(
        f'<rect width="100%" height="100%" fill="#fff"/><text x="16" y="28" font-size="15">{escape(title)}</text>'
    )
    for i, (name, value) in enumerate(rows):
        y, wide = 48 + i * high, value / most * width
        color = "#4285F4" if line is None or value <= line else "#FF7043"
        out.append(f'<text x="{left - 10}" y="{y + 13}" text-anchor="end" fill="#1f2933">{escape(name)}</text>')
        out.append(f'<rect x="{left}" y="{y}" width="{wide:.1f}" height="{high - 6}" rx="2" fill="{color}"/>')
        out.append(f'<text x="{left + wide + 6:.1f}" y="{y + 13}" fill="#7b8794">{value:.2f}{unit}</text>')
    if line is not None:
        x = left + line / most * width
        out.append(
            f'<line x1="{x:.1f}" y1="42" x2="{x:.1f}" y2="{height - 12}" stroke="#1f2933" stroke-dasharray="4 3"/>'
        )
    with open(path, "w") as file:
        file.write("\n".join([*out, "</svg>\n"]))
