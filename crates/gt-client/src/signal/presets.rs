//! Kinds of parallelism by name, as layouts and rules for parameters.

use super::config::{Mesh, Rule, Signal, Stages, read_workers};
use super::node::{Kind, Node};
use gt_ir::Result;
use gt_ir::signal::Lay;

const NAMES: [&str; 4] = ["data_parallel", "fsdp", "tensor_parallel", "pipeline"];
/// Layers whose outputs are divided, in the names of common models; weights are (outputs, inputs).
const COLUMN: [&str; 10] = [
    "*q_proj.*",
    "*k_proj.*",
    "*v_proj.*",
    "*gate_proj.*",
    "*up_proj.*",
    "*fc1.*",
    "*c_fc.*",
    "*w1.*",
    "*w3.*",
    "*qkv*",
];
/// Layers whose inputs are divided; they follow those above.
const ROW: [&str; 6] = [
    "*o_proj.weight",
    "*down_proj.weight",
    "*fc2.weight",
    "*c_proj.weight",
    "*w2.weight",
    "*out_proj.weight",
];

fn entry<'a>(node: &'a Node, key: &str) -> Option<&'a Node> {
    match &node.kind {
        Kind::Map(entries) => entries.iter().find(|(k, _)| k == key).map(|(_, v)| v),
        _ => None,
    }
}

/// The presets a signal names: one, or a list.
pub fn names(node: &Node) -> Vec<&str> {
    match entry(node, "preset").map(|n| &n.kind) {
        Some(Kind::Text(name)) => vec![name],
        Some(Kind::List(items)) => items
            .iter()
            .filter_map(|n| match &n.kind {
                Kind::Text(name) => Some(name.as_str()),
                _ => None,
            })
            .collect(),
        _ => Vec::new(),
    }
}

/// Sets the layouts of a signal's presets, each on its axis of the mesh; gives their rules for parameters.
pub fn apply(node: &Node, mesh: &Mesh, lays: &mut [Lay], what: &str) -> Result<Vec<Rule>> {
    let Some(preset) = entry(node, "preset") else { return Ok(Vec::new()) };
    let items = match &preset.kind {
        Kind::List(items) => items.iter().collect(),
        _ => vec![preset],
    };
    let mut rules = Vec::new();
    for item in items {
        let name = item.text(&format!("{what}: preset"))?;
        let axis =
            |wanted: &str, other: usize| mesh.axes.iter().position(|a| a.name == wanted).unwrap_or(other);
        let (data, model) = (axis("data", 0), axis("model", mesh.axes.len() - 1));
        let rule = |pattern: &str, axis, lay| Rule { pattern: pattern.into(), axis, lay, place: None };
        match name {
            "data_parallel" => {
                lays[data] = Lay::Split(0);
                rules.push(rule("*", data, Lay::Whole));
            }
            "fsdp" => {
                lays[data] = Lay::Split(0);
                rules.push(rule("*", data, Lay::Split(0)));
            }
            "tensor_parallel" => {
                let (column, row) =
                    (patterns(node, "column", &COLUMN, what)?, patterns(node, "row", &ROW, what)?);
                rules.extend(column.iter().map(|p| rule(p, model, Lay::Split(0))));
                rules.extend(row.iter().map(|p| rule(p, model, Lay::Split(1))));
                rules.push(rule("*", model, Lay::Whole));
            }
            "pipeline" if names(node).len() == 1 => lays.fill(Lay::Free),
            "pipeline" => {}
            other => {
                let known = NAMES.join(", ");
                return Err(
                    item.error(format!("{what}: there is no preset {other:?}, expected one of {known}"))
                );
            }
        }
    }
    Ok(rules)
}

fn patterns(node: &Node, key: &str, common: &[&str], what: &str) -> Result<Vec<String>> {
    let Some(list) = entry(node, key) else { return Ok(common.iter().map(|p| p.to_string()).collect()) };
    let what = format!("{what}: {key}");
    list.items(&what)?.iter().map(|n| n.text(&what).map(str::to_string)).collect()
}

/// The stages of a pipeline preset.
pub fn pipeline(node: &Node, what: &str) -> Result<Option<Stages>> {
    if !names(node).contains(&"pipeline") {
        return Ok(None);
    }
    let Some(stages) = entry(node, "stages") else {
        return Err(
            node.error(format!("{what}: a pipeline needs `stages`, their number or the workers of each"))
        );
    };
    let count = match &stages.kind {
        Kind::List(items) => items.len() as i64,
        _ => stages.int(&format!("{what}: stages"))?,
    };
    if !(1..=4096).contains(&count) {
        return Err(stages.error(format!("{what}: stages: expected 1 to 4096, got {count}")));
    }
    let split = entry(node, "split");
    let name = split.map(|n| n.text(&format!("{what}: split"))).transpose()?;
    let place = split.or(entry(node, "preset")).unwrap_or(node).place.clone();
    Ok(Some(Stages { count: count as u32, split: name.map(str::to_string), place }))
}

/// The signal, followed by those of its stages: `name.0`, `name.1`, ...
pub fn stages(signal: Signal) -> Result<Vec<Signal>> {
    let (Some(stages), Some(lying)) = (signal.stages.clone(), signal.lying.clone()) else {
        return Ok(vec![signal]);
    };
    let what = format!("signal {:?}: stages", signal.name);
    let mut all = Vec::new();
    for i in 0..stages.count {
        let mut lying = lying.clone();
        match entry(&signal.node, "stages").map(|n| &n.kind) {
            Some(Kind::List(items)) => {
                if !lying.mesh.workers.is_empty() {
                    return Err(
                        items[0].error(format!("{what}: each has its own workers: leave out `workers`"))
                    );
                }
                lying.mesh.workers = read_workers(&items[i as usize], &format!("{what}: stage {i}"))?;
                let all = items.iter().map(|n| read_workers(n, &what)).collect::<Result<Vec<_>>>()?;
                lying.others = all.concat();
                lying.part = (i, stages.count);
            }
            _ => lying.part = (i, stages.count),
        }
        all.push(Signal {
            name: format!("{}.{i}", signal.name),
            lying: Some(lying),
            backward: None,
            compile: false,
            rules: signal.rules.clone(),
            modules: Vec::new(),
            stages: None,
            node: signal.node.clone(),
        });
    }
    all.insert(0, Signal { lying: None, rules: Vec::new(), ..signal });
    Ok(all)
}
