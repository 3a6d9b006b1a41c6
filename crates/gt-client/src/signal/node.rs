//! A YAML document as a tree whose parts know their lines, so that errors can name them.

use gt_ir::{Error, Result, bail};
use saphyr_parser::{Event, Parser, ScalarStyle};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// Where a node was written: a file and a line, or a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// A path, or what was called.
    pub source: Arc<str>,
    /// 1 and on; 0 where there are no lines.
    pub line: usize,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self.line {
            0 => write!(f, "{}", self.source),
            line => write!(f, "{}:{line}", self.source),
        }
    }
}

/// One node of the tree.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    pub place: Place,
    pub kind: Kind,
}

/// What a node is. Plain scalars are read by YAML's core rules.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    Null,
    Bool(bool),
    Int(i64),
    Text(String),
    List(Vec<Node>),
    /// In the order written.
    Map(Vec<(String, Node)>),
}

/// Nodes of one document at most, aliases written out.
const MAX_NODES: usize = 1 << 17;
/// How deep nodes may lie in one another.
const MAX_DEPTH: usize = 64;

impl Node {
    /// An error at this node.
    pub fn error(&self, what: impl std::fmt::Display) -> Error {
        Error::Value(format!("{}: {what}", self.place))
    }

    /// What it is, in a word or as it was written.
    pub fn shown(&self) -> String {
        match &self.kind {
            Kind::Null => "nothing".into(),
            Kind::Bool(x) => x.to_string(),
            Kind::Int(x) => x.to_string(),
            Kind::Text(x) => format!("{x:?}"),
            Kind::List(_) => "a list".into(),
            Kind::Map(_) => "a mapping".into(),
        }
    }

    /// The entries of a mapping; nothing at all counts as an empty one.
    pub fn entries(&self, what: &str) -> Result<&[(String, Node)]> {
        match &self.kind {
            Kind::Map(entries) => Ok(entries),
            Kind::Null => Ok(&[]),
            _ => Err(self.error(format!("{what}: expected a mapping, got {}", self.shown()))),
        }
    }

    /// The items of a list.
    pub fn items(&self, what: &str) -> Result<&[Node]> {
        match &self.kind {
            Kind::List(items) => Ok(items),
            _ => Err(self.error(format!("{what}: expected a list, got {}", self.shown()))),
        }
    }

    /// A whole number.
    pub fn int(&self, what: &str) -> Result<i64> {
        match self.kind {
            Kind::Int(x) => Ok(x),
            _ => Err(self.error(format!("{what}: expected a whole number, got {}", self.shown()))),
        }
    }

    /// True or false.
    pub fn switch(&self, what: &str) -> Result<bool> {
        match self.kind {
            Kind::Bool(x) => Ok(x),
            _ => Err(self.error(format!("{what}: expected true or false, got {}", self.shown()))),
        }
    }

    /// A name.
    pub fn text(&self, what: &str) -> Result<&str> {
        match &self.kind {
            Kind::Text(x) => Ok(x),
            _ => Err(self.error(format!("{what}: expected a name, got {}", self.shown()))),
        }
    }
}

/// Reads a YAML file.
pub fn read(path: &Path) -> Result<Node> {
    let source = path.display().to_string();
    let text = std::fs::read_to_string(path)
        .map_err(|e| Error::Value(format!("config: {source} cannot be read: {e}")))?;
    parse(&text, source.into())
}

/// Reads YAML text; `source` is what errors call it.
pub fn parse(text: &str, source: Arc<str>) -> Result<Node> {
    let mut reader =
        Reader { parser: Parser::new_from_str(text), source, anchors: HashMap::new(), nodes: 0, line: 1 };
    let mut root = None;
    loop {
        match reader.next()? {
            Event::StreamEnd => break,
            Event::DocumentStart(_) if root.is_some() => {
                return Err(reader.error("a second document: expected one per file"));
            }
            Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd | Event::Nothing => {}
            event => root = Some(reader.node(event, 0)?),
        }
    }
    Ok(root.unwrap_or_else(|| Node { place: reader.place(), kind: Kind::Null }))
}

struct Reader<'a> {
    parser: Parser<'a, saphyr_parser::StrInput<'a>>,
    source: Arc<str>,
    anchors: HashMap<usize, Node>,
    nodes: usize,
    line: usize,
}

impl<'a> Reader<'a> {
    fn place(&self) -> Place {
        Place { source: self.source.clone(), line: self.line }
    }

    fn error(&self, what: impl std::fmt::Display) -> Error {
        Error::Value(format!("{}: {what}", self.place()))
    }

    fn next(&mut self) -> Result<Event<'a>> {
        match self.parser.next() {
            Some(Ok((event, span))) => {
                self.line = span.start.line();
                Ok(event)
            }
            Some(Err(e)) => {
                self.line = e.marker().line();
                Err(self.error(e.info()))
            }
            None => Ok(Event::StreamEnd),
        }
    }

    fn count(&mut self, more: usize) -> Result<()> {
        self.nodes += more;
        if self.nodes > MAX_NODES {
            return Err(self.error(format!("more than {MAX_NODES} entries")));
        }
        Ok(())
    }

    fn node(&mut self, event: Event<'a>, depth: usize) -> Result<Node> {
        self.count(1)?;
        if depth > MAX_DEPTH {
            return Err(self.error(format!("nested more than {MAX_DEPTH} deep")));
        }
        let place = self.place();
        let (kind, anchor) = match event {
            Event::Scalar(text, style, anchor, _) => (scalar(&text, style), anchor),
            Event::SequenceStart(anchor, _) => (Kind::List(self.list(depth)?), anchor),
            Event::MappingStart(anchor, _) => (Kind::Map(self.map(depth)?), anchor),
            Event::Alias(id) => {
                let Some(node) = self.anchors.get(&id).cloned() else {
                    return Err(self.error("an alias of nothing"));
                };
                self.count(size(&node))?;
                return Ok(node);
            }
            other => return Err(self.error(format!("unexpected {other:?}"))),
        };
        let node = Node { place, kind };
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn list(&mut self, depth: usize) -> Result<Vec<Node>> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                Event::SequenceEnd => return Ok(items),
                event => items.push(self.node(event, depth + 1)?),
            }
        }
    }

    fn map(&mut self, depth: usize) -> Result<Vec<(String, Node)>> {
        let mut entries: Vec<(String, Node)> = Vec::new();
        loop {
            let key = match self.next()? {
                Event::MappingEnd => return Ok(entries),
                Event::Scalar(text, ..) => text.into_owned(),
                _ => return Err(self.error("expected a name before the colon")),
            };
            if entries.iter().any(|(known, _)| *known == key) {
                return Err(self.error(format!("{key:?} stands here twice")));
            }
            let line = self.line;
            let event = self.next()?;
            let mut value = self.node(event, depth + 1)?;
            // An error about an entry names the line of its key.
            value.place.line = line;
            entries.push((key, value));
        }
    }
}

fn size(node: &Node) -> usize {
    match &node.kind {
        Kind::List(items) => 1 + items.iter().map(size).sum::<usize>(),
        Kind::Map(entries) => 1 + entries.iter().map(|(_, n)| size(n)).sum::<usize>(),
        _ => 1,
    }
}

fn scalar(text: &str, style: ScalarStyle) -> Kind {
    if style != ScalarStyle::Plain {
        return Kind::Text(text.into());
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Kind::Null,
        "true" | "True" | "TRUE" => Kind::Bool(true),
        "false" | "False" | "FALSE" => Kind::Bool(false),
        _ => text.parse().map_or_else(|_| Kind::Text(text.into()), Kind::Int),
    }
}

/// An empty mapping for a call.
pub fn called(source: &str, kind: Kind) -> Node {
    Node { place: Place { source: source.into(), line: 0 }, kind }
}

/// Refuses keys that mean nothing here.
pub fn known_keys(node: &Node, what: &str, keys: &[&str]) -> Result<()> {
    for (key, value) in node.entries(what)? {
        if !keys.contains(&key.as_str()) {
            bail!(Value, "{}: {what}: unknown key {key:?}, expected one of {}", value.place, keys.join(", "));
        }
    }
    Ok(())
}
