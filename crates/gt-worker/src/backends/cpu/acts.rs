//! The acts that chains are made of.

use super::lower::Do;
use gt_ir::{Binary, ReduceKind, Unary};

/// One act on the value at hand, with the numbers of the places it needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Act {
    pub code: Code,
    pub at: u8,
    pub by: u8,
    pub to: u8,
}

impl Act {
    pub const fn new(code: Code, at: u8) -> Act {
        Act { code, at, by: 0, to: 0 }
    }
}

/// What an act does. One flat list, so that one jump finds the act; `One` is for a place with one number for all elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Code {
    /// The value is what lies at a place.
    Load,
    LoadOne,
    /// The op with the value on its left.
    Add,
    AddOne,
    Sub,
    SubOne,
    Mul,
    MulOne,
    Div,
    DivOne,
    Max,
    MaxOne,
    Min,
    MinOne,
    /// The op with the value on its right.
    SubFrom,
    SubFromOne,
    DivInto,
    DivIntoOne,
    MaxAfter,
    MaxAfterOne,
    MinAfter,
    MinAfterOne,
    Neg,
    Abs,
    Relu,
    Sqrt,
    Rsqrt,
    Recip,
    Square,
    Cube,
    Exp,
    Tanh,
    Sigmoid,
    Silu,
    Gelu,
    GeluGrad,
    Save,
    /// Writes past the caches.
    Stream,
    /// Joins the value to the lanes of a fold.
    FoldSum,
    FoldProd,
    FoldMax,
    FoldMin,
    /// Two acts in one, which saves the way from one to the next.
    LoadSubOne,
    LoadMulOne,
    LoadMul,
    LoadFoldSum,
    LoadFoldMax,
    SquareFoldSum,
    MulAdd,
    /// What softmax and its like do to each element: `LoadSubOne`, `Exp`, perhaps `Save`, `FoldSum`.
    ExpFold,
    ExpSaveFold,
    /// Asks for a part of what lies a tile further: `by` eighths, beginning at the place.
    Ask,
}

/// The acts for a binary op with the value on its left and on its right.
pub fn pair(op: Binary) -> Option<(Code, Code)> {
    Some(match op {
        Binary::Add => (Code::Add, Code::Add),
        Binary::Sub => (Code::Sub, Code::SubFrom),
        Binary::Mul => (Code::Mul, Code::Mul),
        Binary::Div => (Code::Div, Code::DivInto),
        Binary::Max => (Code::Max, Code::MaxAfter),
        Binary::Min => (Code::Min, Code::MinAfter),
        Binary::FloorDiv
        | Binary::Rem
        | Binary::Pow
        | Binary::And
        | Binary::Or
        | Binary::Xor
        | Binary::Atan2 => return None,
        Binary::Eq | Binary::Ne | Binary::Lt | Binary::Le | Binary::Gt | Binary::Ge => return None,
    })
}

/// The same act with one number for all elements.
pub fn by_one(code: Code) -> Code {
    match code {
        Code::Load => Code::LoadOne,
        Code::Add => Code::AddOne,
        Code::Sub => Code::SubOne,
        Code::Mul => Code::MulOne,
        Code::Div => Code::DivOne,
        Code::Max => Code::MaxOne,
        Code::Min => Code::MinOne,
        Code::SubFrom => Code::SubFromOne,
        Code::DivInto => Code::DivIntoOne,
        Code::MaxAfter => Code::MaxAfterOne,
        Code::MinAfter => Code::MinAfterOne,
        other => other,
    }
}

/// The act for a unary op.
pub fn unary(op: Unary) -> Option<Code> {
    Some(match op {
        Unary::Neg => Code::Neg,
        Unary::Abs => Code::Abs,
        Unary::Relu => Code::Relu,
        Unary::Sqrt => Code::Sqrt,
        Unary::Rsqrt => Code::Rsqrt,
        Unary::Recip => Code::Recip,
        Unary::Exp => Code::Exp,
        Unary::Tanh => Code::Tanh,
        Unary::Sigmoid => Code::Sigmoid,
        Unary::Silu => Code::Silu,
        Unary::Gelu => Code::Gelu,
        Unary::GeluGrad => Code::GeluGrad,
        Unary::Sign | Unary::Expm1 | Unary::Log | Unary::Log1p | Unary::Sin | Unary::Cos | Unary::Erf => {
            return None;
        }
        Unary::Floor | Unary::Ceil | Unary::Round | Unary::Trunc | Unary::Not => return None,
        Unary::Asin | Unary::Acos | Unary::Atan => return None,
    })
}

/// The act that joins the value to a fold.
pub fn fold_code(kind: ReduceKind) -> Code {
    match kind {
        ReduceKind::Sum => Code::FoldSum,
        ReduceKind::Prod => Code::FoldProd,
        ReduceKind::Max => Code::FoldMax,
        ReduceKind::Min => Code::FoldMin,
    }
}

/// The act for an op that needs no place.
pub fn map(work: &Do) -> Option<Code> {
    match work {
        Do::Unary(op) => unary(*op),
        Do::Square => Some(Code::Square),
        Do::Cube => Some(Code::Cube),
        Do::Binary(_) | Do::Where | Do::Cast | Do::Fold(_) => None,
    }
}

/// Roughly, how long an act takes.
pub fn cost(act: &Act) -> usize {
    match act.code {
        code if is_heavy(code) => 10,
        Code::Sqrt | Code::Rsqrt | Code::Recip => 5,
        _ => 1,
    }
}

/// Needs more registers than stay free beside a block and the lanes of a fold.
pub fn is_heavy(code: Code) -> bool {
    let map =
        matches!(code, Code::Exp | Code::Tanh | Code::Sigmoid | Code::Silu | Code::Gelu | Code::GeluGrad);
    map || matches!(code, Code::ExpFold | Code::ExpSaveFold)
}

/// Joins neighbouring acts that are often met together.
pub fn join(code: &mut Vec<Act>) {
    let mut out: Vec<Act> = Vec::with_capacity(code.len());
    for act in code.drain(..) {
        let last = out.last_mut();
        let joined = last.as_ref().and_then(|last| match (last.code, act.code) {
            (Code::Load, Code::SubOne) => Some(Code::LoadSubOne),
            (Code::Load, Code::MulOne) => Some(Code::LoadMulOne),
            (Code::Load, Code::Mul) => Some(Code::LoadMul),
            (Code::Load, Code::FoldSum) => Some(Code::LoadFoldSum),
            (Code::Load, Code::FoldMax) => Some(Code::LoadFoldMax),
            (Code::Square, Code::FoldSum) => Some(Code::SquareFoldSum),
            (Code::Mul, Code::Add) => Some(Code::MulAdd),
            _ => None,
        });
        match (last, joined) {
            (Some(last), Some(code)) => *last = Act { code, at: last.at, by: act.at, to: 0 },
            _ => out.push(act),
        }
    }
    let tail = |n: usize| &out[out.len().saturating_sub(n)..];
    let codes = |n: usize| tail(n).iter().map(|act| act.code);
    let long = [Code::LoadSubOne, Code::Exp, Code::Save, Code::FoldSum];
    let short = [Code::LoadSubOne, Code::Exp, Code::FoldSum];
    let found = if codes(4).eq(long) {
        Some((4, Act { code: Code::ExpSaveFold, to: tail(2)[0].at, ..tail(4)[0] }))
    } else if codes(3).eq(short) {
        Some((3, Act { code: Code::ExpFold, ..tail(3)[0] }))
    } else {
        None
    };
    if let Some((n, act)) = found {
        out.truncate(out.len() - n);
        out.push(act);
    }
    *code = out;
}
