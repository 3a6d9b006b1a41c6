//! A picture as SVG text.

use super::{Anchor, Canvas, Color};
use std::fmt::Write;

pub struct Svg {
    body: String,
    width: f64,
    height: f64,
}

impl Svg {
    pub fn new(width: f64, height: f64) -> Svg {
        Svg { body: String::new(), width, height }
    }

    /// The whole file.
    pub fn finish(self) -> String {
        let Svg { body, width, height } = self;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
             viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"DejaVu Sans, Verdana, sans-serif\">\n{body}</svg>\n"
        )
    }

    fn fill(color: Color) -> String {
        let Color(r, g, b, alpha) = color;
        match alpha {
            a if a >= 1.0 => format!("#{r:02x}{g:02x}{b:02x}"),
            a => format!("rgba({r},{g},{b},{a:.3})"),
        }
    }
}

/// A number without needless digits.
fn n(x: f64) -> f64 {
    (x * 100.0).round() / 100.0
}

impl Canvas for Svg {
    fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, color: Color) {
        let (x, y, w, h) = (n(x), n(y), n(width.max(0.01)), n(height));
        let fill = Svg::fill(color);
        let _ =
            writeln!(self.body, "<rect x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\" fill=\"{fill}\"/>");
    }

    fn line(&mut self, from: (f64, f64), to: (f64, f64), width: f64, color: Color) {
        let (x1, y1, x2, y2) = (n(from.0), n(from.1), n(to.0), n(to.1));
        let stroke = Svg::fill(color);
        let _ = writeln!(
            self.body,
            "<line x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\" stroke=\"{stroke}\" stroke-width=\"{}\"/>",
            n(width)
        );
    }

    fn shape(&mut self, points: &[(f64, f64)], color: Color) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{},{}", n(*x), n(*y))).collect();
        let _ =
            writeln!(self.body, "<polygon points=\"{}\" fill=\"{}\"/>", points.join(" "), Svg::fill(color));
    }

    fn circle(&mut self, x: f64, y: f64, radius: f64, color: Color) {
        let (x, y, r) = (n(x), n(y), n(radius));
        let _ =
            writeln!(self.body, "<circle cx=\"{x}\" cy=\"{y}\" r=\"{r}\" fill=\"{}\"/>", Svg::fill(color));
    }

    fn text(&mut self, x: f64, y: f64, size: f64, anchor: Anchor, bold: bool, color: Color, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let weight = if bold { " font-weight=\"bold\"" } else { "" };
        let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let _ = writeln!(
            self.body,
            "<text x=\"{}\" y=\"{}\" font-size=\"{}\" text-anchor=\"{anchor}\"{weight} fill=\"{}\">{text}</text>",
            n(x),
            n(y),
            n(size),
            Svg::fill(color)
        );
    }
}
