//! `gt`: one self-contained program.

fn main() {
    let status = gt_cli::main(std::env::args().collect());
    gt_cli::local::leaving();
    std::process::exit(status);
}
