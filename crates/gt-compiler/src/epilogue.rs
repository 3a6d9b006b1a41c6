//! Products take in a sum and a relu that follow them, where that changes no bit (C7).
//!
//! A sum in f32 is one of two numbers that are rounded already, whoever computes it. A relu of what was rounded is the
//! rounded relu, in every type. Sums in half types and other functions would see what the product had not rounded yet.

use crate::graph::{Graph, Ref, Use, Uses, WHOLE, What};
use crate::plan::Calc;
use gt_ir::{Binary, DType, Op, Structure, Unary};
use smallvec::SmallVec;

/// A product and what follows it.
#[derive(Clone, Debug, Default)]
pub struct Product {
    /// Its instruction.
    pub instr: u32,
    /// Those that follow.
    pub fused: SmallVec<[u32; 2]>,
    /// The last operand is added to the product, and not its own addend.
    pub residual: bool,
    pub relu: bool,
}

/// A bias is read in whole vectors of so many numbers.
const VECTOR: isize = 4;

pub fn epilogues(graph: &mut Graph, structure: &Structure) {
    for n in 0..graph.nodes.len() {
        let Some((from, product, args)) = taken_in(graph, structure, n) else { continue };
        let from = &mut graph.nodes[from as usize];
        (from.live, from.uses) = (false, 0);
        let node = &mut graph.nodes[n];
        (node.what, node.args) = (What::Product(Box::new(product)), args);
    }
}

/// The product that node `n` only follows, with it, and the operands of both.
fn taken_in(graph: &Graph, structure: &Structure, n: usize) -> Option<(u32, Product, Uses)> {
    let node = &graph.nodes[n];
    let (What::Elementwise(Some(calc)), true) = (&node.what, node.live) else { return None };
    let (r, added) = match (calc, &node.args[..]) {
        (Calc::Unary(Unary::Relu), [Use::Val(x)]) => (*x, None),
        // The later one: the other is there when it is computed.
        (Calc::Binary(Binary::Add), [Use::Val(x), Use::Val(y)]) => {
            if x.node > y.node {
                (*x, Some(*y))
            } else {
                (*y, Some(*x))
            }
        }
        _ => return None,
    };
    // Nothing is computed in between: operands of the product would have to live longer.
    let between = &graph.nodes[r.node as usize + 1..n];
    if between.iter().any(|node| node.live && !matches!(node.what, What::Full | What::Iota)) {
        return None;
    }
    let before = &graph.nodes[r.node as usize];
    if r.map != WHOLE || before.uses != 1 || before.ty != node.ty || node.ty.shape.numel() == 0 {
        return None;
    }
    let mut product = match &before.what {
        What::Other => Product { instr: before.instr, ..Product::default() },
        What::Product(product) if !product.relu => (**product).clone(),
        _ => return None,
    };
    let Op::Matmul { ta, .. } = &structure.instrs[product.instr as usize].op else { return None };
    let Some(Use::Val(left)) = before.args.first() else { return None };
    let left = graph.shape(*left);
    let terms = left[left.len() - if *ta { 2 } else { 1 }];
    let fits = match (added, node.ty.dtype) {
        (None, dtype) => matches!(dtype, DType::F32 | DType::F16 | DType::BF16),
        (Some(added), dtype) => dtype == DType::F32 && before.args.len() == 2 && is_addend(graph, added, n),
    };
    if !fits || terms == 0 {
        return None;
    }
    product.fused.push(node.instr);
    match added {
        None => product.relu = true,
        Some(_) => product.residual = true,
    }
    let args = before.args.iter().copied().chain(added.map(Use::Val)).collect();
    Some((r.node, product, args))
}

/// True if a value can be added to the product that node `n` follows as it lies: all of its shape, or a row for all rows.
fn is_addend(graph: &Graph, added: Ref, n: usize) -> bool {
    let shape = &graph.nodes[n].ty.shape;
    if added.map == WHOLE && graph.nodes[added.node as usize].ty.shape == *shape {
        return true;
    }
    let map = graph.map(added).expanded(graph.shape(added), shape);
    let last = shape.len() - 1;
    let still = (0..last).all(|d| map.strides[d] == 0 || shape[d] == 1);
    still && map.strides[last] == 1 && map.slots.is_empty() && map.offset % VECTOR == 0
}

#[cfg(test)]
mod tests {
    use crate::{CompileOptions, Work, compile};
    use gt_ir::text;

    /// The steps of a product of two matrices followed by `lines`.
    fn steps(dtype: &str, lines: &str) -> String {
        let program = format!(
            "in TENSOR[0] {dtype}[8, 16]
             in TENSOR[1] {dtype}[16, 32]
             in TENSOR[2] {dtype}[8, 32]
             in TENSOR[3] {dtype}[32]
             TENSOR[4] := MATMUL{{ta=false,tb=false}} TENSOR[0] TENSOR[1]
             {lines}"
        );
        let structure = text::parse_structure(&program).unwrap();
        let options = CompileOptions { epilogues: true, ..CompileOptions::default() };
        let plan = compile(&structure, &structure.check().unwrap(), options).unwrap();
        let kind = |step: &crate::Step| match &step.work {
            Work::Kernel(_) => "kernel".to_string(),
            Work::Matmul(mm) => {
                let residual = if mm.residual.is_some() { "+" } else { "" };
                let relu = if mm.relu { " relu" } else { "" };
                format!("product{residual}{relu} of {:?} {:?}", step.instr, step.fused)
            }
            other => panic!("{other}"),
        };
        plan.steps.iter().map(kind).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn a_sum_and_a_relu_belong_to_their_product() {
        let relu = "TENSOR[5] := RELU TENSOR[4]\nout TENSOR[5]";
        assert_eq!(steps("f32", relu), "product relu of 0 [1]");
        assert_eq!(steps("bf16", relu), "product relu of 0 [1]");
        let sum = "TENSOR[5] := ADD TENSOR[2] TENSOR[4]\nout TENSOR[5]";
        assert_eq!(steps("f32", sum), "product+ of 0 [1]");
        let row = "TENSOR[5] := ADD TENSOR[4] TENSOR[3]\nTENSOR[6] := RELU TENSOR[5]\nout TENSOR[6]";
        assert_eq!(steps("f32", row), "product+ relu of 0 [1, 2]");
    }

    #[test]
    fn what_would_change_a_bit_or_is_needed_itself_stays() {
        let sum = "TENSOR[5] := ADD TENSOR[2] TENSOR[4]\nout TENSOR[5]";
        assert_eq!(steps("bf16", sum), "product of 0 [], kernel");
        assert_eq!(steps("f64", "TENSOR[5] := RELU TENSOR[4]\nout TENSOR[5]"), "product of 0 [], kernel");
        let both = "TENSOR[5] := RELU TENSOR[4]\nout TENSOR[4]\nout TENSOR[5]";
        assert_eq!(steps("f32", both), "product of 0 [], kernel");
        let twice = "TENSOR[5] := ADD TENSOR[4] TENSOR[4]\nout TENSOR[5]";
        assert_eq!(steps("f32", twice), "product of 0 [], kernel");
        let late =
            "TENSOR[5] := EXP TENSOR[2]\nTENSOR[6] := ADD TENSOR[4] TENSOR[2]\nout TENSOR[5]\nout TENSOR[6]";
        assert_eq!(steps("f32", late), "product of 0 [], kernel");
        let after = "TENSOR[5] := RELU TENSOR[4]\nTENSOR[6] := ADD TENSOR[5] TENSOR[2]\nout TENSOR[6]";
        assert_eq!(steps("f32", after), "product relu of 0 [1], kernel");
    }
}
