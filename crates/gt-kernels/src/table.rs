//! The rows of the op table as CUDA functions, and the switches by which the interpreter finds them. The text is kept in
//! `cuda/rows.cu` and `cuda/switch.cu`; a test holds it against the table.

#[cfg(test)]
use gt_ir::elementwise::{Gives, Takes};
use gt_ir::{Binary, Unary};
#[cfg(test)]
use std::fmt::Write;

/// Unary functions beside those of the table, numbered after them: logical not of bool, and whole powers.
pub const EXTRA: [(&str, &str); 3] = [("lnot", "x == T(0)"), ("square", "x * x"), ("cube", "x * x * x")];

/// The number of an extra unary function.
pub fn extra(name: &str) -> u8 {
    (Unary::ALL.len() + EXTRA.iter().position(|e| e.0 == name).unwrap_or(0)) as u8
}

/// The number of a row, by which the interpreter finds it.
pub fn unary_number(op: Unary) -> u8 {
    Unary::ALL.iter().position(|o| *o == op).unwrap_or(0) as u8
}

/// The number of a row, by which the interpreter finds it.
pub fn binary_number(op: Binary) -> u8 {
    Binary::ALL.iter().position(|o| *o == op).unwrap_or(0) as u8
}

/// The name of a row's CUDA function.
pub fn unary_name(op: Unary) -> String {
    format!("gt_u_{}", op.text().to_lowercase())
}

/// True for functions that a device works out in its own way, by the name of a row; arithmetic and roots round alike
/// everywhere.
pub fn is_rounded_by_device(name: &str) -> bool {
    const FUNCTIONS: [&str; 16] = [
        "exp", "expm1", "log", "log1p", "rsqrt", "sin", "cos", "tanh", "sigmoid", "gelu", "gelugrad", "silu",
        "erf", "asin", "acos", "atan",
    ];
    name.strip_prefix("gt_u_").is_some_and(|name| FUNCTIONS.contains(&name))
}

/// The name of a row's CUDA function.
pub fn binary_name(op: Binary) -> String {
    format!("gt_b_{}", op.text().to_lowercase())
}

#[cfg(test)]
fn on_reals(takes: Takes) -> bool {
    takes != Takes::Bits
}

#[cfg(test)]
fn on_ints(takes: Takes) -> bool {
    takes != Takes::Float
}

/// Every row as a function, for reals as a template and for integers on its own; integers wrap.
#[cfg(test)]
fn rows_text() -> String {
    let mut out =
        String::from("\n// The rows of the op table. Written by the test `texts_are_those_of_the_table`.\n");
    for &op in Unary::ALL {
        let (name, text) = (unary_name(op), op.cuda());
        if on_reals(op.takes()) {
            let hide = if is_rounded_by_device(&name) { "x = gt_unknown(x); " } else { "" };
            let _ = writeln!(out, "template <class T> GT_FN T {name}(T x) {{ {hide}return {text}; }}");
        }
        if on_ints(op.takes()) {
            let _ = match op {
                Unary::Neg => writeln!(out, "GT_FN i64 {name}(i64 y) {{ u64 x = y; return (i64)({text}); }}"),
                _ => writeln!(out, "GT_FN i64 {name}(i64 x) {{ typedef i64 T; return (T)({text}); }}"),
            };
        }
    }
    for (name, text) in EXTRA {
        let _ = writeln!(out, "template <class T> GT_FN T gt_u_{name}(T x) {{ return {text}; }}");
    }
    for &op in Binary::ALL {
        let (name, text) = (binary_name(op), op.cuda());
        let (real, int) = match op.gives() {
            Gives::Same => ("T", "i64"),
            Gives::Bool => ("bool", "bool"),
        };
        if on_reals(op.takes()) {
            let hide = if matches!(op, Binary::Pow | Binary::Atan2) { "a = gt_unknown(a); " } else { "" };
            let _ =
                writeln!(out, "template <class T> GT_FN {real} {name}(T a, T b) {{ {hide}return {text}; }}");
        }
        if on_ints(op.takes()) {
            let _ = match op {
                Binary::Add | Binary::Sub | Binary::Mul => {
                    writeln!(
                        out,
                        "GT_FN i64 {name}(i64 c, i64 d) {{ u64 a = c, b = d; return (i64)({text}); }}"
                    )
                }
                _ => writeln!(out, "GT_FN {int} {name}(i64 a, i64 b) {{ return {text}; }}"),
            };
        }
    }
    out
}

/// The functions found by number.
#[cfg(test)]
fn switch_text() -> String {
    fn cases(
        out: &mut String,
        head: &str,
        given: &str,
        none: &str,
        list: impl Iterator<Item = (u8, String)>,
    ) {
        let _ = writeln!(out, "{head} {{\n    switch (op) {{");
        for (number, name) in list {
            let _ = writeln!(out, "        case {number}: return {name}({given});");
        }
        let _ = writeln!(out, "        default: return {none};\n    }}\n}}");
    }
    let unary = |on: fn(Takes) -> bool, more: &'static [&'static str]| {
        let rows = Unary::ALL.iter().filter(move |op| on(op.takes()));
        rows.map(|&op| (unary_number(op), unary_name(op)))
            .chain(more.iter().map(|name| (extra(name), format!("gt_u_{name}"))))
    };
    let binary = |on: fn(Takes) -> bool, gives: Gives| {
        let rows = Binary::ALL.iter().filter(move |op| on(op.takes()) && op.gives() == gives);
        rows.map(|&op| (binary_number(op), binary_name(op)))
    };
    let mut out =
        String::from("\n// The rows by number. Written by the test `texts_are_those_of_the_table`.\n");
    let template = "template <class T> __device__";
    cases(
        &mut out,
        &format!("{template} T gt_unary_real(int op, T x)"),
        "x",
        "x",
        unary(on_reals, &["square", "cube"]),
    );
    cases(&mut out, "__device__ inline i64 gt_unary_int(int op, i64 x)", "x", "x", unary(on_ints, &["lnot"]));
    let same = |on| binary(on, Gives::Same);
    cases(&mut out, &format!("{template} T gt_binary_real(int op, T a, T b)"), "a, b", "a", same(on_reals));
    cases(&mut out, "__device__ inline i64 gt_binary_int(int op, i64 a, i64 b)", "a, b", "a", same(on_ints));
    let compare = binary(|_| true, Gives::Bool);
    cases(&mut out, &format!("{template} bool gt_compare(int op, T a, T b)"), "a, b", "false", compare);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `GT_BLESS=1` writes them anew.
    #[test]
    fn texts_are_those_of_the_table() {
        for (file, text) in [("rows.cu", rows_text()), ("switch.cu", switch_text())] {
            let path = format!("{}/src/cuda/{file}", env!("CARGO_MANIFEST_DIR"));
            if std::env::var_os("GT_BLESS").is_some() {
                std::fs::write(&path, &text).unwrap();
            }
            assert_eq!(
                std::fs::read_to_string(&path).unwrap_or_default(),
                text,
                "{file}: run with GT_BLESS=1"
            );
        }
    }
}
