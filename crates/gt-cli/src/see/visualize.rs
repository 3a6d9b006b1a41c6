//! `gt visualize`: the timeline of instruction logs as a picture, or as a trace for Perfetto.

use super::draw::{self, Fonts, Png, Svg};
use super::timeline::Timeline;
use super::{log, perfetto};
use gt_ir::{Error, Result, bail};
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub struct Args {
    /// Instruction logs (GT_INSTRUCTION_LOG) or traces (gt trace) of one server.
    #[arg(required = true, value_name = "LOG")]
    logs: Vec<PathBuf>,
    /// The file to write; its ending says what: .png, .svg, or .json for https://ui.perfetto.dev.
    #[arg(short, long, default_value = "timeline.png")]
    output: PathBuf,
    /// Pixels per inch of a .png.
    #[arg(long, default_value_t = 150.0, value_parser = positive)]
    dpi: f64,
    /// Inches.
    #[arg(long, default_value_t = 16.0, value_parser = positive)]
    width: f64,
    /// Inches; as many as the lanes need unless given.
    #[arg(long, value_parser = positive)]
    height: Option<f64>,
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(x) if x > 0.0 && x <= 10_000.0 => Ok(x),
        _ => Err(format!("expected a number above 0, got {text}")),
    }
}

/// Units of a picture per inch.
const PER_INCH: f64 = 96.0;

pub fn run(args: Args) -> Result<i32> {
    let mut entries = Vec::new();
    let mut skipped = 0;
    for path in &args.logs {
        let (more, bad) = log::read(path)?;
        entries.extend(more);
        skipped += bad;
    }
    if entries.is_empty() {
        let hint = "make one with GT_INSTRUCTION_LOG=FILE or `gt trace`";
        bail!(Value, "visualize: no events in {}: {hint}", args.logs[0].display());
    }
    if skipped > 0 {
        gt_ir::say!("gt: visualize: {skipped} lines are no events and were left out");
    }
    let line = Timeline::new(entries);
    write(&line, &args)?;
    let (events, path) = (line.events, args.output.display());
    println!("{events} events, {} clients, {} workers: {path}", line.clients.len(), line.workers.len());
    Ok(0)
}

fn write(line: &Timeline, args: &Args) -> Result<()> {
    let width = (args.width * PER_INCH).max(420.0);
    let height = args.height.map_or_else(|| draw::height(line, width), |h| (h * PER_INCH).max(200.0));
    let ending = args.output.extension().and_then(|e| e.to_str()).unwrap_or_default().to_lowercase();
    let bytes = match ending.as_str() {
        "json" => perfetto::json(line).into_bytes(),
        "svg" => {
            let mut svg = Svg::new(width, height);
            draw::draw(line, &mut svg, &Fonts::new()?, width, height);
            svg.finish().into_bytes()
        }
        "png" => {
            let fonts = Fonts::new()?;
            let mut png = Png::new(width, height, args.dpi / PER_INCH, &fonts)?;
            draw::draw(line, &mut png, &fonts, width, height);
            png.finish()?
        }
        _ => bail!(
            Value,
            "visualize: expected --output with .png, .svg or .json, got {}",
            args.output.display()
        ),
    };
    save(&args.output, &bytes)
}

fn save(path: &Path, bytes: &[u8]) -> Result<()> {
    if let Some(folder) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
        let _ = std::fs::create_dir_all(folder);
    }
    std::fs::write(path, bytes)
        .map_err(|e| Error::Value(format!("visualize: cannot write {}: {e}", path.display())))
}
