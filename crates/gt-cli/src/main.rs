//! `gt`: one self-contained program.

fn main() {
    std::process::exit(gt_cli::main(std::env::args().collect()));
}
