//! A picture as pixels.

use super::{Anchor, Canvas, Color, Fonts};
use gt_ir::{Error, Result};
use std::collections::HashMap;
use tiny_skia::{FillRule, Paint, Path, PathBuilder, Pixmap, PremultipliedColorU8, Rect, Stroke, Transform};

/// A drawn letter: how wide it is, where it lies, and how much of each pixel it covers.
type Glyph = (fontdue::Metrics, Vec<u8>);

pub struct Png<'a> {
    pixels: Pixmap,
    fonts: &'a Fonts,
    /// Pixels per unit.
    scale: f32,
    glyphs: HashMap<(char, u32, bool), Glyph>,
}

impl<'a> Png<'a> {
    /// `scale` pixels per unit.
    pub fn new(width: f64, height: f64, scale: f64, fonts: &'a Fonts) -> Result<Png<'a>> {
        let pixels = |x: f64| (x * scale).round().clamp(1.0, 60_000.0) as u32;
        let pixmap = Pixmap::new(pixels(width), pixels(height)).ok_or_else(|| {
            Error::Value("visualize: the picture is too large: lower --dpi or --width".into())
        })?;
        Ok(Png { pixels: pixmap, fonts, scale: scale as f32, glyphs: HashMap::new() })
    }

    /// The file's bytes.
    pub fn finish(self) -> Result<Vec<u8>> {
        self.pixels.encode_png().map_err(|e| Error::Runtime(format!("visualize: {e}")))
    }

    fn at(&self, x: f64) -> f32 {
        x as f32 * self.scale
    }

    fn fill(&mut self, path: &Path, color: Color) {
        let paint = paint(color);
        self.pixels.fill_path(path, &paint, FillRule::Winding, Transform::identity(), None);
    }
}

fn paint(color: Color) -> Paint<'static> {
    let Color(r, g, b, alpha) = color;
    let mut paint = Paint::default();
    paint.set_color_rgba8(r, g, b, (alpha.clamp(0.0, 1.0) * 255.0).round() as u8);
    paint.anti_alias = true;
    paint
}

impl Canvas for Png<'_> {
    fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, color: Color) {
        let (w, h) = (self.at(width).max(0.05), self.at(height).max(0.05));
        if let Some(rect) = Rect::from_xywh(self.at(x), self.at(y), w, h) {
            self.pixels.fill_rect(rect, &paint(color), Transform::identity(), None);
        }
    }

    fn line(&mut self, from: (f64, f64), to: (f64, f64), width: f64, color: Color) {
        let mut path = PathBuilder::new();
        path.move_to(self.at(from.0), self.at(from.1));
        path.line_to(self.at(to.0), self.at(to.1));
        let stroke = Stroke { width: self.at(width), ..Stroke::default() };
        if let Some(path) = path.finish() {
            self.pixels.stroke_path(&path, &paint(color), &stroke, Transform::identity(), None);
        }
    }

    fn shape(&mut self, points: &[(f64, f64)], color: Color) {
        let mut path = PathBuilder::new();
        for (i, (x, y)) in points.iter().enumerate() {
            match i {
                0 => path.move_to(self.at(*x), self.at(*y)),
                _ => path.line_to(self.at(*x), self.at(*y)),
            }
        }
        path.close();
        if let Some(path) = path.finish() {
            self.fill(&path, color);
        }
    }

    fn circle(&mut self, x: f64, y: f64, radius: f64, color: Color) {
        if let Some(path) = PathBuilder::from_circle(self.at(x), self.at(y), self.at(radius)) {
            self.fill(&path, color);
        }
    }

    fn text(&mut self, x: f64, y: f64, size: f64, anchor: Anchor, bold: bool, color: Color, text: &str) {
        let width = self.fonts.width(text, size, bold);
        let start = match anchor {
            Anchor::Start => x,
            Anchor::Middle => x - width / 2.0,
            Anchor::End => x - width,
        };
        let (mut pen, base, pixels) = (self.at(start), self.at(y), self.at(size));
        for c in text.chars() {
            let key = (c, pixels.to_bits(), bold);
            let fonts = self.fonts;
            let (metrics, mask) =
                self.glyphs.entry(key).or_insert_with(|| fonts.get(bold).rasterize(c, pixels));
            let left = (pen + metrics.xmin as f32).round() as i64;
            let top = base.round() as i64 - metrics.ymin as i64 - metrics.height as i64;
            stamp(&mut self.pixels, mask, metrics.width, left, top, color);
            pen += metrics.advance_width;
        }
    }
}

/// Lays a letter over the pixels.
fn stamp(pixels: &mut Pixmap, mask: &[u8], width: usize, left: i64, top: i64, color: Color) {
    let (w, h) = (pixels.width() as i64, pixels.height() as i64);
    let Color(r, g, b, alpha) = color;
    let data = pixels.pixels_mut();
    for (i, cover) in mask.iter().enumerate().filter(|(_, c)| **c > 0) {
        let (x, y) = (left + (i % width) as i64, top + (i / width) as i64);
        if x < 0 || y < 0 || x >= w || y >= h {
            continue;
        }
        let pixel = &mut data[(y * w + x) as usize];
        let a = *cover as f32 / 255.0 * alpha;
        let mix = |old: u8, new: u8| (old as f32 * (1.0 - a) + new as f32 * a).round() as u8;
        let (alpha, red, green, blue) =
            (mix(pixel.alpha(), 255), mix(pixel.red(), r), mix(pixel.green(), g), mix(pixel.blue(), b));
        if let Some(new) =
            PremultipliedColorU8::from_rgba(red.min(alpha), green.min(alpha), blue.min(alpha), alpha)
        {
            *pixel = new;
        }
    }
}
