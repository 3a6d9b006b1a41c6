//! What a configuration says, read from YAML or from calls, and checked.

use super::node::{Kind, Node, Place, known_keys};
use super::{pattern, presets};
use gt_ir::signal::{Lay, MeshAxis, SignalSpec};
use gt_ir::{Error, Result, Shape};

/// A mesh by name.
#[derive(Clone, Debug, PartialEq)]
pub struct Mesh {
    pub axes: Vec<MeshAxis>,
    pub workers: Vec<u32>,
}

/// Where and how the tensors of a signal lie.
#[derive(Clone, Debug, PartialEq)]
pub struct Lying {
    pub mesh: Mesh,
    /// One per axis of the mesh.
    pub lays: Vec<Lay>,
    /// As in `SignalSpec`.
    pub part: (u32, u32),
    pub others: Vec<u32>,
}

/// How parameters whose name fits a pattern lie on one axis of the mesh.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    pub pattern: String,
    pub axis: usize,
    pub lay: Lay,
    /// Where it is written; a rule of a preset has no line, and passes over parameters it cannot split.
    pub place: Option<Place>,
}

/// The layers of a pipeline.
#[derive(Clone, Debug, PartialEq)]
pub struct Stages {
    pub count: u32,
    /// The module whose children are spread over the stages; by default the longest list of modules.
    pub split: Option<String>,
    /// Where that is written, or where the preset is.
    pub place: Place,
}

/// One signal.
#[derive(Clone, Debug, PartialEq)]
pub struct Signal {
    pub name: String,
    /// None for a signal that lays nothing out.
    pub lying: Option<Lying>,
    /// The signal of the backward pass.
    pub backward: Option<String>,
    /// What is recorded inside is a program of its own, compiled at once.
    pub compile: bool,
    /// In order: the first that fits a name and an axis counts.
    pub rules: Vec<Rule>,
    /// (pattern over names of modules, the signal in which their forward runs).
    pub modules: Vec<(String, String)>,
    pub stages: Option<Stages>,
    /// As it was written.
    pub node: Node,
}

const SIGNAL_KEYS: &[&str] = &[
    "shard",
    "backward",
    "backward_signal",
    "compile",
    "mesh",
    "workers",
    "layout",
    "parameters",
    "modules",
    "preset",
    "stages",
    "split",
    "column",
    "row",
];
/// Tensors have no more dimensions than this.
const AXES: std::ops::Range<i64> = -64..64;

/// All signals of a document, those of stages included. `others` are the names of signals it may refer to.
pub fn read(root: &Node, others: &[String]) -> Result<Vec<Signal>> {
    let mut meshes = Vec::new();
    let entries = root.entries("config")?;
    for (key, node) in entries.iter().filter(|(key, _)| key == "meshes") {
        for (name, mesh) in node.entries(key)? {
            meshes.push((name.clone(), read_mesh(name, mesh)?));
        }
    }
    let mut signals = Vec::new();
    for (name, node) in entries.iter().filter(|(key, _)| key != "meshes") {
        signals.extend(read_signal(name, node, &meshes)?);
    }
    for signal in &signals {
        for (pattern, target) in &signal.modules {
            let new = |name: &&String| signals.iter().all(|s| s.name != **name);
            let mut known = signals.iter().map(|s| &s.name).chain(others.iter().filter(new));
            if !known.clone().any(|name| name == target) {
                let first = known.next().cloned().unwrap_or_default();
                let known = known.fold(first, |list, name| list + ", " + name);
                let written = get(&signal.node, "modules").and_then(|modules| get(modules, pattern));
                return Err(written.unwrap_or(&signal.node).error(format!(
                    "signal {:?}: modules: there is no signal {target:?}, only {known}",
                    signal.name
                )));
            }
        }
    }
    Ok(signals)
}

fn get<'a>(node: &'a Node, key: &str) -> Option<&'a Node> {
    match &node.kind {
        Kind::Map(entries) => entries.iter().find(|(k, _)| k == key).map(|(_, v)| v),
        _ => None,
    }
}

fn read_mesh(name: &str, node: &Node) -> Result<Mesh> {
    let what = format!("mesh {name:?}");
    known_keys(node, &what, &["axes", "workers"])?;
    let Some(axes) = get(node, "axes") else { return Err(node.error(format!("{what}: no axes"))) };
    let mut list = Vec::new();
    for (axis, size) in axes.entries(&what)? {
        let count = match &size.kind {
            Kind::Text(rest) if rest == "rest" => 0,
            _ => match size.int(&format!("{what}: axis {axis:?}"))? {
                n @ 1..=65536 => n as u32,
                n => return Err(size.error(format!("{what}: axis {axis:?} of {n} workers"))),
            },
        };
        list.push(MeshAxis { name: axis.clone(), size: count });
    }
    if list.is_empty() || list.len() > 8 || list.iter().filter(|a| a.size == 0).count() > 1 {
        return Err(axes.error(format!("{what}: expected one to eight axes, at most one of them `rest`")));
    }
    let workers = get(node, "workers").map_or(Ok(Vec::new()), |n| read_workers(n, &what))?;
    let need: usize = list.iter().map(|a| a.size.max(1) as usize).product();
    let open = list.iter().any(|a| a.size == 0);
    let fits = if open {
        workers.len() >= need && workers.len().is_multiple_of(need)
    } else {
        workers.len() == need
    };
    if !workers.is_empty() && !fits {
        return Err(node.error(format!("{what}: it has {need} places and {} workers", workers.len())));
    }
    Ok(Mesh { axes: list, workers })
}

pub(super) fn read_workers(node: &Node, what: &str) -> Result<Vec<u32>> {
    let mut workers = Vec::new();
    for item in node.items(&format!("{what}: workers"))? {
        let n = item.int(&format!("{what}: workers"))?;
        let Ok(worker) = u32::try_from(n) else {
            return Err(item.error(format!("{what}: there is no worker {n}, they are numbered from 0")));
        };
        if workers.contains(&worker) {
            return Err(item.error(format!("{what}: worker {n} stands here twice")));
        }
        workers.push(worker);
    }
    if workers.is_empty() {
        return Err(node.error(format!("{what}: workers: expected at least one")));
    }
    Ok(workers)
}

/// A dimension, `whole` or `auto`.
fn read_lay(node: &Node, what: &str) -> Result<Lay> {
    match &node.kind {
        Kind::Int(axis) if AXES.contains(axis) => Ok(Lay::Split(*axis as i32)),
        Kind::Text(text) if text == "whole" || text == "replicated" => Ok(Lay::Whole),
        Kind::Text(text) if text == "auto" => Ok(Lay::Free),
        _ => Err(node.error(format!(
            "{what}: expected a dimension (0, 1, -1, ...), `whole` or `auto`, got {}",
            node.shown()
        ))),
    }
}

/// Layouts per mesh axis; none where nothing is said.
fn read_lays(node: &Node, mesh: &Mesh, what: &str) -> Result<Vec<Option<Lay>>> {
    let mut lays = vec![None; mesh.axes.len()];
    match &node.kind {
        Kind::Map(entries) => {
            for (axis, lay) in entries {
                let Some(at) = mesh.axes.iter().position(|a| a.name == *axis) else {
                    let known: Vec<&str> = mesh.axes.iter().map(|a| a.name.as_str()).collect();
                    let known = known.join(", ");
                    return Err(lay.error(format!("{what}: the mesh has no axis {axis:?}, only {known}")));
                };
                lays[at] = Some(read_lay(lay, what)?);
            }
        }
        _ => match read_lay(node, what)? {
            Lay::Split(_) if lays.len() > 1 => {
                return Err(node.error(format!(
                    "{what}: the mesh has {} axes, say which: {{{}: {}}}",
                    lays.len(),
                    mesh.axes[0].name,
                    node.shown()
                )));
            }
            lay => lays.fill(Some(lay)),
        },
    }
    Ok(lays)
}

fn read_signal(name: &str, node: &Node, meshes: &[(String, Mesh)]) -> Result<Vec<Signal>> {
    let what = format!("signal {name:?}");
    known_keys(node, &what, SIGNAL_KEYS)?;
    let mut signal = Signal {
        name: name.into(),
        lying: None,
        backward: None,
        compile: get(node, "compile").map_or(Ok(false), |n| n.switch(&format!("{what}: compile")))?,
        rules: Vec::new(),
        modules: Vec::new(),
        stages: None,
        node: node.clone(),
    };
    for key in ["backward", "backward_signal"] {
        if let Some(backward) = get(node, key).filter(|n| n.kind != Kind::Null) {
            let name: String = backward.text(&format!("{what}: {key}"))?.into();
            if signal.backward.as_ref().is_some_and(|other| *other != name) {
                return Err(
                    backward.error(format!("{what}: `backward` and `backward_signal` say different things"))
                );
            }
            signal.backward = Some(name);
        }
    }
    let modules = format!("{what}: modules");
    for (pattern, target) in get(node, "modules").map_or(Ok(&[][..]), |n| n.entries(&modules))? {
        if pattern::is_open(pattern) {
            return Err(target.error(format!("{modules} {pattern:?}: a `[` without its `]`")));
        }
        signal.modules.push((pattern.clone(), target.text(&modules)?.into()));
    }
    if let Some(shard) = get(node, "shard").filter(|n| n.kind != Kind::Null) {
        for key in ["mesh", "workers", "layout", "preset", "parameters"] {
            if let Some(other) = get(node, key) {
                return Err(other.error(format!("{what}: `shard` and `{key}` say the same thing twice")));
            }
        }
        signal.lying = Some(read_shard(shard, &what)?);
    } else {
        read_lying(&mut signal, node, meshes, &what)?;
    }
    if let Some(rules) = get(node, "parameters") {
        let Some(lying) = &signal.lying else {
            return Err(rules.error(format!("{what}: parameters: on which mesh? Name one, or workers")));
        };
        let mut own = Vec::new();
        for (pattern, lay) in rules.entries(&format!("{what}: parameters"))? {
            if pattern::is_open(pattern) {
                return Err(lay.error(format!("{what}: parameters {pattern:?}: a `[` without its `]`")));
            }
            let lays = read_lays(lay, &lying.mesh, &format!("{what}: parameters {pattern:?}"))?;
            for (axis, lay) in lays.into_iter().enumerate().filter_map(|(i, l)| Some((i, l?))) {
                let place = Some(rules.place_of(pattern));
                own.push(Rule { pattern: pattern.clone(), axis, lay, place });
            }
        }
        own.append(&mut signal.rules);
        signal.rules = own;
    }
    for (key, preset) in [
        ("column", "tensor_parallel"),
        ("row", "tensor_parallel"),
        ("stages", "pipeline"),
        ("split", "pipeline"),
    ] {
        if let Some(n) = get(node, key).filter(|_| !presets::names(node).contains(&preset)) {
            return Err(n.error(format!("{what}: `{key}` belongs to `preset: {preset}`")));
        }
    }
    presets::stages(signal)
}

/// The old form: an axis and workers.
fn read_shard(node: &Node, what: &str) -> Result<Lying> {
    let what = format!("{what}: shard");
    known_keys(node, &what, &["axis", "workers", "replicated"])?;
    let replicated =
        get(node, "replicated").map_or(Ok(false), |n| n.switch(&format!("{what}: replicated")))?;
    let axis = match get(node, "axis").filter(|n| n.kind != Kind::Null) {
        None => 0,
        Some(n) => match n.int(&format!("{what}: axis"))? {
            axis if AXES.contains(&axis) => axis as i32,
            axis => return Err(n.error(format!("{what}: no tensor has an axis {axis}"))),
        },
    };
    let workers = match get(node, "workers").filter(|n| n.kind != Kind::Null) {
        Some(n) => read_workers(n, &what)?,
        None => Vec::new(),
    };
    let lay = if replicated { Lay::Whole } else { Lay::Split(axis) };
    Ok(Lying { mesh: line_of(workers), lays: vec![lay], part: (0, 0), others: Vec::new() })
}

/// A mesh of one axis.
pub fn line_of(workers: Vec<u32>) -> Mesh {
    Mesh { axes: vec![MeshAxis { name: "workers".into(), size: 0 }], workers }
}

/// The new form: a mesh, or workers, with a layout, a preset or both.
fn read_lying(signal: &mut Signal, node: &Node, meshes: &[(String, Mesh)], what: &str) -> Result<()> {
    let workers = get(node, "workers").map(|n| read_workers(n, what)).transpose()?;
    let mesh = match (get(node, "mesh"), workers) {
        (Some(n), None) if matches!(n.kind, Kind::Map(_)) => Some(read_mesh("of its own", n)?),
        (Some(n), None) => {
            let name = n.text(&format!("{what}: mesh"))?;
            match meshes.iter().find(|(known, _)| known == name) {
                Some((_, mesh)) => Some(mesh.clone()),
                None => {
                    let known: Vec<&str> = meshes.iter().map(|(n, _)| n.as_str()).collect();
                    let known = if known.is_empty() { "none".into() } else { known.join(", ") };
                    return Err(n.error(format!("{what}: there is no mesh {name:?}; there is {known}")));
                }
            }
        }
        (Some(n), Some(_)) => {
            return Err(n.error(format!("{what}: a mesh has its own workers: leave out one of the two")));
        }
        (None, Some(workers)) => Some(line_of(workers)),
        (None, None) => None,
    };
    let (layout, preset) = (get(node, "layout"), get(node, "preset"));
    let Some(mesh) = mesh.or_else(|| (layout.is_some() || preset.is_some()).then(|| line_of(Vec::new())))
    else {
        return Ok(());
    };
    let said = match layout {
        Some(n) => Some(read_lays(n, &mesh, &format!("{what}: layout"))?),
        None => None,
    };
    let unsaid = if said.is_some() || preset.is_some() { Lay::Whole } else { Lay::Free };
    let mut lays = vec![unsaid; mesh.axes.len()];
    if preset.is_some() {
        signal.rules = presets::apply(node, &mesh, &mut lays, what)?;
        signal.stages = presets::pipeline(node, what)?;
    }
    for (lay, said) in lays.iter_mut().zip(said.unwrap_or_default()) {
        *lay = said.unwrap_or(*lay);
    }
    signal.lying = Some(Lying { mesh, lays, part: (0, 0), others: Vec::new() });
    Ok(())
}

impl Node {
    /// Where an entry of a mapping was written.
    fn place_of(&self, key: &str) -> Place {
        get(self, key).unwrap_or(self).place.clone()
    }
}

impl Lying {
    /// As it travels.
    pub fn spec(&self, name: &str, lays: Vec<Lay>) -> SignalSpec {
        SignalSpec {
            name: name.into(),
            axes: self.mesh.axes.clone(),
            workers: self.mesh.workers.clone(),
            lays,
            part: self.part,
            others: self.others.clone(),
        }
    }
}

impl Signal {
    /// How a parameter lies, where a rule says so.
    pub fn parameter(&self, name: &str, shape: &Shape) -> Result<Option<SignalSpec>> {
        let Some(lying) = &self.lying else { return Ok(None) };
        let mut lays = vec![Lay::Whole; lying.mesh.axes.len()];
        let mut said = false;
        for (axis, lay) in lays.iter_mut().enumerate() {
            let fits = |r: &&Rule| r.axis == axis && pattern::fits(&r.pattern, name);
            let Some(rule) = self.rules.iter().find(fits) else { continue };
            said = true;
            match (rule.lay, &rule.place) {
                (Lay::Split(dim), place) if !has_dim(shape, dim) => {
                    if let Some(place) = place {
                        return Err(Error::Value(format!(
                            "{place}: signal {:?}: parameters {:?}: axis {dim} of {name:?}, which has shape {shape}",
                            self.name, rule.pattern
                        )));
                    }
                }
                (chosen, _) => *lay = chosen,
            }
        }
        Ok(said.then(|| lying.spec(&self.name, lays)))
    }

    /// How tensors made in its context lie.
    pub fn spec(&self) -> Option<SignalSpec> {
        self.lying.as_ref().map(|l| l.spec(&self.name, l.lays.clone()))
    }

    /// True if it has something to say about modules.
    pub fn has_patterns(&self) -> bool {
        !self.rules.is_empty() || !self.modules.is_empty() || self.stages.is_some()
    }
}

/// True if a tensor of this shape has the dimension.
pub fn has_dim(shape: &Shape, dim: i32) -> bool {
    let rank = shape.len() as i64;
    (-rank..rank).contains(&i64::from(dim))
}
