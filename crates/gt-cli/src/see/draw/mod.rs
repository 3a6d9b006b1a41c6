//! Pictures of a timeline: what is drawn (`lanes`), and on what (`svg`, `png`).

mod axis;
mod lanes;
mod png;
mod svg;

pub use lanes::{draw, height};
pub use png::Png;
pub use svg::Svg;

use fontdue::{Font, FontSettings};
use gt_ir::{Error, Result};
use gt_net::observe::Family;

/// Red, green, blue, and how much of what lies below is covered.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Color(pub u8, pub u8, pub u8, pub f32);

impl Color {
    pub const fn rgb(hex: u32) -> Color {
        Color((hex >> 16) as u8, (hex >> 8) as u8, hex as u8, 1.0)
    }

    pub const fn with_alpha(self, alpha: f32) -> Color {
        Color(self.0, self.1, self.2, alpha)
    }
}

/// The colour of a family, the same in every tool.
pub const fn family_color(family: Family) -> Color {
    Color::rgb(match family {
        Family::Matmul => 0x4285F4,
        Family::Attention => 0xAB47BC,
        Family::Elementwise => 0x43A047,
        Family::Reduce => 0xFBC02D,
        Family::Move => 0x00ACC1,
        Family::Index => 0x8D6E63,
        Family::Random => 0xF06292,
        Family::Optimizer => 0xFF7043,
        Family::Collective => 0xE53935,
        Family::Other => 0x9E9E9E,
    })
}

/// Where a text stands relative to its point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

/// Something to draw on. Lengths are in units of 1/96 inch.
pub trait Canvas {
    fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, color: Color);
    fn line(&mut self, from: (f64, f64), to: (f64, f64), width: f64, color: Color);
    /// A closed shape, filled.
    fn shape(&mut self, points: &[(f64, f64)], color: Color);
    fn circle(&mut self, x: f64, y: f64, radius: f64, color: Color);
    /// `y` is the baseline.
    fn text(&mut self, x: f64, y: f64, size: f64, anchor: Anchor, bold: bool, color: Color, text: &str);
}

/// The fonts of all pictures.
pub struct Fonts {
    plain: Font,
    bold: Font,
}

impl Fonts {
    pub fn new() -> Result<Fonts> {
        let load = |bytes: &[u8]| {
            let settings = FontSettings { scale: 24.0, ..FontSettings::default() };
            Font::from_bytes(bytes, settings).map_err(|e| Error::Runtime(format!("font: {e}")))
        };
        Ok(Fonts {
            plain: load(include_bytes!("../../../fonts/DejaVuSans.ttf"))?,
            bold: load(include_bytes!("../../../fonts/DejaVuSans-Bold.ttf"))?,
        })
    }

    pub fn get(&self, bold: bool) -> &Font {
        if bold { &self.bold } else { &self.plain }
    }

    /// How wide a text is.
    pub fn width(&self, text: &str, size: f64, bold: bool) -> f64 {
        let font = self.get(bold);
        text.chars().map(|c| font.metrics(c, size as f32).advance_width as f64).sum()
    }

    /// As much of the text as fits, with a sign where some is left out; nothing if that says nothing.
    pub fn fit(&self, text: &str, size: f64, bold: bool, room: f64) -> Option<String> {
        if self.width(text, size, bold) <= room {
            return Some(text.to_string());
        }
        let mut kept = String::new();
        let mut width = self.width("…", size, bold);
        for c in text.chars() {
            width += self.get(bold).metrics(c, size as f32).advance_width as f64;
            if width > room {
                break;
            }
            kept.push(c);
        }
        (kept.chars().count() >= 3).then(|| kept + "…")
    }
}
