//! Configurations that are right, and the words for those that are not.

use super::config::{Signal, read};
use super::node::parse;
use gt_ir::Shape;
use gt_ir::signal::{Lay, SignalSpec};

fn signals(text: &str) -> Result<Vec<Signal>, String> {
    let root = parse(text, "file.yaml".into()).map_err(|e| e.to_string())?;
    read(&root, &[]).map_err(|e| e.to_string())
}

fn spec(text: &str, name: &str) -> SignalSpec {
    signals(text).unwrap().iter().find(|s| s.name == name).unwrap().spec().unwrap()
}

fn error(text: &str) -> String {
    signals(text).unwrap_err()
}

#[test]
fn the_old_form() {
    let text = "
hot_path:
  shard:
    axis: 0
    workers: [0, 1, 2, 3]
  compile: true  # Mark as compilation boundary
whole: {shard: {replicated: true}}
stage_1:
  shard: {axis: 1, workers: [0, 1]}
  backward: stage_1_backward
";
    let all = signals(text).unwrap();
    assert!(all[0].compile && !all[1].compile);
    assert_eq!(all[2].backward.as_deref(), Some("stage_1_backward"));
    let hot = spec(text, "hot_path");
    assert_eq!((hot.workers, hot.lays), (vec![0, 1, 2, 3], vec![Lay::Split(0)]));
    let whole = spec(text, "whole");
    assert_eq!((whole.workers, whole.lays), (vec![], vec![Lay::Whole]));
}

#[test]
fn meshes_and_rules() {
    let text = "
meshes:
  grid: {axes: {data: 2, model: 2}}
train:
  mesh: grid
  layout: {data: 0}
  parameters:
    '*.q_proj.weight': {model: 0}
    '*.bias': whole
    '*': {data: 0}
";
    let grid = spec(text, "train");
    assert_eq!(grid.lays, [Lay::Split(0), Lay::Whole]);
    let train = signals(text).unwrap().remove(0);
    let lays = |name: &str, shape: &[usize]| {
        let shape: Shape = shape.iter().copied().collect();
        train.parameter(name, &shape).unwrap().unwrap().lays
    };
    assert_eq!(lays("a.q_proj.weight", &[4, 4]), [Lay::Split(0), Lay::Split(0)]);
    assert_eq!(lays("a.bias", &[4]), [Lay::Whole, Lay::Whole]);
    assert_eq!(lays("other", &[4]), [Lay::Split(0), Lay::Whole]);
}

#[test]
fn presets() {
    let text = "
meshes:
  grid: {axes: {data: rest, model: 2}}
dp: {preset: data_parallel, workers: [0, 1]}
zero: {preset: fsdp}
both: {preset: [fsdp, tensor_parallel], mesh: grid}
pipe: {preset: pipeline, stages: 2, split: model.layers}
fixed: {preset: pipeline, stages: [[0, 1], [2]]}
";
    assert_eq!(spec(text, "dp").lays, [Lay::Split(0)]);
    let all = signals(text).unwrap();
    let find = |name: &str| all.iter().find(|s| s.name == name).unwrap();
    let lays = |name: &str, p: &str, shape: &[usize]| {
        let shape: Shape = shape.iter().copied().collect();
        find(name).parameter(p, &shape).unwrap().map(|s| s.lays)
    };
    assert_eq!(lays("dp", "x", &[3]), Some(vec![Lay::Whole]));
    assert_eq!(lays("zero", "x", &[3]), Some(vec![Lay::Split(0)]));
    // What has no dimension to split stays whole.
    assert_eq!(lays("zero", "x", &[]), Some(vec![Lay::Whole]));
    assert_eq!(lays("both", "l.q_proj.weight", &[4, 4]), Some(vec![Lay::Split(0), Lay::Split(0)]));
    assert_eq!(lays("both", "l.o_proj.weight", &[4, 4]), Some(vec![Lay::Split(0), Lay::Split(1)]));
    assert_eq!(lays("both", "l.norm.weight", &[4]), Some(vec![Lay::Split(0), Lay::Whole]));
    assert_eq!(find("pipe").lying, None);
    assert_eq!((spec(text, "pipe.1").part, spec(text, "pipe.1").lays), ((1, 2), vec![Lay::Free]));
    assert_eq!((spec(text, "fixed.0").workers, spec(text, "fixed.1").workers), (vec![0, 1], vec![2]));
}

#[test]
fn errors_name_the_line() {
    let cases = [
        (
            "a:\n  shard:\n    axis: 0\n    worker: [0]\n",
            "file.yaml:4: signal \"a\": shard: unknown key \"worker\", expected one of axis, workers, replicated",
        ),
        ("a:\n  shards: {}\n", "file.yaml:2: signal \"a\": unknown key \"shards\""),
        (
            "a:\n  shard:\n    axis: x\n",
            "file.yaml:3: signal \"a\": shard: axis: expected a whole number, got \"x\"",
        ),
        ("a:\n  shard:\n    axis: 0.5\n", "file.yaml:3:"),
        ("a:\n  shard:\n    axis: 99\n", "file.yaml:3: signal \"a\": shard: no tensor has an axis 99"),
        (
            "a:\n  shard:\n    workers: []\n",
            "file.yaml:3: signal \"a\": shard: workers: expected at least one",
        ),
        (
            "a:\n  shard:\n    workers:\n      - 0\n      - -1\n",
            "file.yaml:5: signal \"a\": shard: there is no worker -1",
        ),
        ("a:\n  shard: {workers: [1, 1]}\n", "file.yaml:2: signal \"a\": shard: worker 1 stands here twice"),
        (
            "a:\n  backward: b\n  backward_signal: c\n",
            "file.yaml:3: signal \"a\": `backward` and `backward_signal` say different things",
        ),
        ("a:\n  compile: 3\n", "file.yaml:2: signal \"a\": compile: expected true or false, got 3"),
        ("a:\n  mesh: grid\n", "file.yaml:2: signal \"a\": there is no mesh \"grid\"; there is none"),
        (
            "meshes:\n  g: {axes: {d: 2}}\na:\n  mesh: g\n  layout: {x: 0}\n",
            "file.yaml:5: signal \"a\": layout: the mesh has no axis \"x\", only d",
        ),
        (
            "meshes:\n  g: {axes: {d: 2, m: 2}}\na:\n  mesh: g\n  layout: 0\n",
            "file.yaml:5: signal \"a\": layout: the mesh has 2 axes, say which: {d: 0}",
        ),
        ("meshes:\n  g: {axes: {d: 0}}\n", "file.yaml:2: mesh \"g\": axis \"d\" of 0 workers"),
        (
            "meshes:\n  g:\n    axes: {d: 4}\n    workers: [0, 1]\n",
            "file.yaml:2: mesh \"g\": it has 4 places and 2 workers",
        ),
        (
            "a:\n  preset: magic\n",
            "file.yaml:2: signal \"a\": there is no preset \"magic\", expected one of data_parallel, fsdp",
        ),
        ("a:\n  preset: pipeline\n", "file.yaml:1: signal \"a\": a pipeline needs `stages`"),
        (
            "a:\n  preset: fsdp\n  stages: 2\n",
            "file.yaml:3: signal \"a\": `stages` belongs to `preset: pipeline`",
        ),
        (
            "a:\n  shard: {axis: 0}\n  layout: 0\n",
            "file.yaml:3: signal \"a\": `shard` and `layout` say the same thing twice",
        ),
        (
            "a:\n  modules:\n    x: b\n",
            "file.yaml:3: signal \"a\": modules: there is no signal \"b\", only a",
        ),
        ("a:\n  modules:\n    '[': a\n", "file.yaml:3: signal \"a\": modules \"[\": a `[` without its `]`"),
        ("a:\n  modules: 3\n", "file.yaml:2: signal \"a\": modules: expected a mapping, got 3"),
        ("a: {}\na: {}\n", "file.yaml:2: \"a\" stands here twice"),
        ("a: [\n", "file.yaml:"),
        ("- 1\n", "file.yaml:1: config: expected a mapping, got a list"),
        ("a:\n  parameters: {x: 0}\n", "file.yaml:2: signal \"a\": parameters: on which mesh?"),
    ];
    for (text, want) in cases {
        let got = error(text);
        assert!(got.starts_with(want), "{text}\n{got}");
    }
}

#[test]
fn a_rule_that_does_not_fit_its_parameter_names_its_line() {
    let train = signals("a:\n  workers: [0]\n  parameters:\n    '*': 1\n").unwrap().remove(0);
    let error = train.parameter("x.bias", &Shape::from([4])).unwrap_err().to_string();
    assert_eq!(
        error,
        "file.yaml:4: signal \"a\": parameters \"*\": axis 1 of \"x.bias\", which has shape [4]"
    );
}

#[test]
fn aliases_stand_for_what_they_name_and_do_not_grow_without_bound() {
    let all = signals("a: &x {shard: {axis: 1}}\nb: *x\n").unwrap();
    assert_eq!(all[0].lying, all[1].lying);
    let mut bomb = String::from("a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n");
    for i in 1..12 {
        let one = format!("*a{}", i - 1);
        bomb += &format!("a{i}: &a{i} [{}]\n", vec![one; 10].join(", "));
    }
    assert!(error(&bomb).contains("more than"), "{}", error(&bomb));
}
