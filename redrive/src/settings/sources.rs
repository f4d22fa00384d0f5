//! The file and the variables as one tree of JSON values that remembers where each field was said.
//!
//! JSON because policies have a JSON form that is theirs already. Nothing is read into types here; see `read`. What is said
//! in messages never contains the text of the file, and of values only what a login cannot be in.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Map, Number, Value};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::engine::EngineConfig;
use crate::error::{Error, Problems, Result};

use super::guards::OF_GUARD;
use super::patch;
use super::targets::OF_TARGET;

/// The names of the fields at the top, and of those of a method beside its policy's.
pub(super) const TOP: &[&str] = &[
    "database",
    "encryption",
    "engine",
    "persist",
    "defaults",
    "guard",
    "guards",
    "http",
    "methods",
    "notify",
    "registry",
    "retention",
    "server",
    "targets",
];
const GUARD: &[&str] = &["scan_interval", "answer_timeout", "mail_channel", "mail_from", "mail_to"];
const HTTP: &[&str] = &["allow", "max_redirects", "gate"];
const SERVER: &[&str] = &["listen", "request_timeout", "idle_timeout", "max_connections", "max_body", "log"];
const REGISTRY: &[&str] = &["kind", "keep_view_for"];
const RETENTION: &[&str] = &["live_window", "keep_months", "keep_archive", "keep_dead", "keep_audit", "keep_sagas"];
const NACOS: &[&str] = &["servers", "namespace", "group", "service", "ip", "username", "password"];
pub(super) const OF_METHOD: &[&str] = &["persist", "concurrency", "per_business", "rate", "gate"];

const PREFIX: &str = "REDRIVE_";
/// The most levels of a variable's name: `REDRIVE_METHODS__X__BACKOFF__EXPONENTIAL__MAX` has five.
const MOST_LEVELS: usize = 6;

/// Where a field was said.
pub(super) enum Origin {
    Line(usize),
    /// A variable; with its text if it is the whole field.
    Variable(String, Option<String>),
}

/// See the module.
pub(super) struct Sources {
    file: String,
    pub(super) tree: Map<String, Value>,
    origins: HashMap<String, Origin>,
    pub(super) problems: Problems,
}

impl Sources {
    /// Of a file, named as it is to be shown, and of variables, which win.
    pub(super) fn new(file: &str, toml: &str, env: impl IntoIterator<Item = (String, String)>) -> Self {
        let (tree, origins, problems) = (Map::new(), HashMap::new(), Problems::default());
        let mut sources = Self { file: file.into(), tree, origins, problems };
        let toml = toml.strip_prefix('\u{feff}').unwrap_or(toml);
        sources.add_file(toml);
        sources.add_variables(env);
        sources
    }

    fn add_file(&mut self, text: &str) {
        let (table, errors) = DeTable::parse_recoverable(text);
        for e in &errors {
            let line = e.span().map_or(1, |span| line(text, span.start));
            self.problems.add(format!("{}, line {line}", self.file), e.message().to_owned());
        }
        if errors.is_empty() {
            self.tree = self.table(text, &mut Vec::new(), table.get_ref());
        }
    }

    fn table(&mut self, text: &str, path: &mut Vec<String>, table: &DeTable<'_>) -> Map<String, Value> {
        let mut fields = Map::new();
        for (name, value) in table {
            let noted = is_section(path);
            path.push(name.get_ref().to_string());
            if noted {
                self.origins.insert(shown(path), Origin::Line(line(text, name.span().start)));
            }
            if let Some(value) = self.value(text, path, value) {
                fields.insert(name.get_ref().to_string(), value);
            }
            path.pop();
        }
        fields
    }

    fn value(&mut self, text: &str, path: &mut Vec<String>, value: &Spanned<DeValue<'_>>) -> Option<Value> {
        match value.get_ref() {
            DeValue::Table(table) => Some(Value::Object(self.table(text, path, table))),
            DeValue::Array(items) => items.iter().map(|item| self.value(text, path, item)).collect(),
            scalar => {
                let read = scalar_value(scalar);
                if read.is_none() {
                    self.note(&shown(path), "is a number that is too great or not finite");
                }
                read
            }
        }
    }

    fn add_variables(&mut self, env: impl IntoIterator<Item = (String, String)>) {
        let ours = env.into_iter().filter(|(name, _)| is_ours(name));
        let ours: BTreeMap<String, String> = ours.collect(); // in order, so that the same problems are told in the same order
        let mut over = Map::new();
        for (name, raw) in ours {
            let Some(path) = variable_path(&name) else {
                self.problems.add(&name, unknown(&name, &variables()));
                continue;
            };
            let named = path.first().is_some_and(|top| ["methods", "targets", "guards"].contains(&top.as_str()));
            let of_field = if named { 3 } else { 2 }.min(path.len());
            let (field, whole) = (shown(path.get(..of_field).unwrap_or_default()), path.len() == of_field);
            let value = if is_text(&path) { raw.clone().into() } else { parsed(&raw) };
            if put(&mut over, &path, value).is_none() {
                self.problems
                    .add(&name, "cannot be given beside a variable that is a part of it, or of which it is one");
            }
            self.origins.insert(field, Origin::Variable(name, whole.then_some(raw)));
        }
        overlay(&mut self.tree, over, &mut Vec::new());
    }

    /// Notes a problem of a field, with the place where the field, or what it is in, was said.
    pub(super) fn note(&mut self, path: &str, problem: impl AsRef<str>) {
        let mut at = path;
        let origin = loop {
            match (self.origins.get(at), at.rsplit_once('.')) {
                (Some(origin), _) => break Some(origin),
                (None, Some((above, _))) => at = above,
                (None, None) => break None,
            }
        };
        let place = match origin {
            Some(Origin::Line(line)) => format!(" ({}, line {line})", self.file),
            Some(Origin::Variable(name, _)) => format!(" ({name})"),
            None => String::new(),
        };
        self.problems.add(path, format!("{}{place}", scrubbed(problem.as_ref())));
    }

    /// The text of the variable that is this field.
    pub(super) fn raw(&self, path: &str) -> Option<&str> {
        match self.origins.get(path)? {
            Origin::Variable(_, raw) => raw.as_deref(),
            Origin::Line(_) => None,
        }
    }
}

/// The variables of this process that may be ours.
pub(super) fn environment() -> Result<Vec<(String, String)>> {
    let (mut ours, mut problems) = (Vec::new(), Problems::default());
    for (name, value) in std::env::vars_os() {
        let Ok(name) = name.into_string() else { continue };
        if is_ours(&name) {
            match value.into_string() {
                Ok(value) => ours.push((name, value)),
                Err(_) => problems.add(name, "is not UTF-8"),
            }
        }
    }
    problems.into_result()?;
    Ok(ours)
}

fn is_ours(name: &str) -> bool {
    // Those of the command line, of tests, and what Kubernetes sets beside a service of that name.
    let others = ["LOG", "TOKEN", "SERVER_URL"];
    let begins = ["TEST_", "SERVICE_", "PORT"];
    name.strip_prefix(PREFIX).is_some_and(|rest| !others.contains(&rest) && !begins.iter().any(|b| rest.starts_with(b)))
}

/// Whether what is at this path has settings of its own below it. What is below a field belongs to its value.
pub(super) fn is_section(path: &[impl AsRef<str>]) -> bool {
    match path {
        [] => true,
        [top] => !["database", "persist"].contains(&top.as_ref()),
        [top, _] if ["methods", "targets", "guards"].contains(&top.as_ref()) => true,
        [top, below] => {
            let sections = [("encryption", "keys"), ("notify", "channels"), ("registry", "nacos")];
            sections.contains(&(top.as_ref(), below.as_ref()))
        }
        [top, below, name] => {
            (top.as_ref(), below.as_ref()) == ("notify", "channels")
                || (top.as_ref(), name.as_ref()) == ("targets", "headers")
        }
        _ => false,
    }
}

/// A path as it is written in TOML.
pub(super) fn shown(path: &[impl AsRef<str>]) -> String {
    path.iter().fold(String::new(), |path, name| join(&path, name.as_ref()))
}

/// A path and a name in it.
pub(crate) fn join(path: &str, name: &str) -> String {
    let bare = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c));
    let name = if bare { name.to_owned() } else { format!("{name:?}") };
    if path.is_empty() { name } else { format!("{path}.{name}") }
}

fn line(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}

fn scalar_value(value: &DeValue<'_>) -> Option<Value> {
    match value {
        DeValue::String(text) => Some(Value::String(text.to_string())),
        DeValue::Boolean(yes) => Some(Value::Bool(*yes)),
        DeValue::Datetime(time) => Some(Value::String(time.to_string())),
        DeValue::Integer(n) => i64::from_str_radix(n.as_str(), n.radix()).ok().map(Value::from),
        DeValue::Float(n) => n.as_str().parse().ok().and_then(Number::from_f64).map(Value::Number),
        DeValue::Array(_) | DeValue::Table(_) => None,
    }
}

/// A variable's value: TOML if it is, else text.
fn parsed(raw: &str) -> Value {
    fn json(value: &DeValue<'_>) -> Option<Value> {
        match value {
            DeValue::Array(items) => items.iter().map(|item| json(item.get_ref())).collect(),
            DeValue::Table(table) => {
                let fields = table.iter().map(|(name, v)| Some((name.get_ref().to_string(), json(v.get_ref())?)));
                fields.collect::<Option<Map<_, _>>>().map(Value::Object)
            }
            scalar => scalar_value(scalar),
        }
    }
    let toml = DeValue::parse(raw).ok().and_then(|value| json(value.get_ref()));
    toml.unwrap_or_else(|| Value::String(raw.to_owned()))
}

/// The field that a variable names, if there is such a field.
fn variable_path(name: &str) -> Option<Vec<String>> {
    let path: Vec<String> = name.strip_prefix(PREFIX)?.split("__").map(str::to_lowercase).collect();
    let names: Vec<&str> = path.iter().map(String::as_str).collect();
    let known = match names.as_slice() {
        ["database" | "persist"] => true,
        ["encryption", "current" | "all"] | ["encryption", "keys", _] => true,
        ["notify", "digest_interval" | "remind_every"] | ["notify", "channels", _, _] => cfg!(feature = "notify"),
        ["registry", field] => REGISTRY.contains(field),
        ["retention", field] => RETENTION.contains(field),
        ["registry", "nacos", field] => NACOS.contains(field),
        ["engine", field] => engine_fields().iter().any(|known| known == field),
        ["guard", field] => GUARD.contains(field),
        ["guards", _, field] => OF_GUARD.contains(field),
        ["http", field] => HTTP.contains(field),
        ["server", field] => SERVER.contains(field),
        ["targets", _, "headers", _] | ["targets", _, "rate", ..] => true,
        ["targets", _, field] if OF_TARGET.contains(field) => true,
        ["defaults", field, ..] => patch::FIELDS.contains(field),
        ["methods", _, "rate", ..] => true,
        ["methods", _, field] if OF_METHOD.contains(field) => true,
        ["methods" | "targets", _, field, ..] => patch::FIELDS.contains(field),
        _ => false,
    };
    (known && path.len() <= MOST_LEVELS && path.iter().all(|name| !name.is_empty())).then_some(path)
}

/// Whether a variable is taken as it is: a password of digits is no number.
fn is_text(path: &[String]) -> bool {
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    matches!(
        path.as_slice(),
        ["encryption", "keys" | "current", ..]
            | ["notify", "channels", _, "user" | "password" | "secret" | "url" | "host"]
            | ["server", "listen"]
            | ["guards", _, "database"]
            | ["targets", _, "base_url" | "signing_secret"]
            | ["targets", _, "headers", _]
            | ["registry", "nacos", "namespace" | "group" | "service" | "ip" | "username" | "password"]
    )
}

/// The names of the engine's fields.
pub(super) fn engine_fields() -> Vec<String> {
    match serde_json::to_value(EngineConfig::default()) {
        Ok(Value::Object(fields)) => fields.into_iter().map(|(name, _)| name).collect(),
        _ => Vec::new(),
    }
}

/// All variables whose names are known beforehand.
fn variables() -> Vec<String> {
    let engine = engine_fields().into_iter().map(|field| format!("ENGINE__{field}"));
    let defaults = patch::FIELDS.iter().map(|field| format!("DEFAULTS__{field}"));
    let registry = REGISTRY.iter().map(|field| format!("REGISTRY__{field}"));
    let retention = RETENTION.iter().map(|field| format!("RETENTION__{field}"));
    let nacos = NACOS.iter().map(|field| format!("REGISTRY__NACOS__{field}"));
    let guard = GUARD.iter().map(|field| format!("GUARD__{field}"));
    let http = HTTP.iter().map(|field| format!("HTTP__{field}"));
    let server = SERVER.iter().map(|field| format!("SERVER__{field}"));
    let all = ["DATABASE", "PERSIST", "ENCRYPTION__CURRENT", "ENCRYPTION__ALL"]
        .map(String::from)
        .into_iter()
        .chain(registry)
        .chain(retention)
        .chain(nacos)
        .chain(guard)
        .chain(http)
        .chain(server)
        .chain(engine)
        .chain(defaults);
    all.map(|name| format!("{PREFIX}{}", name.to_uppercase())).collect()
}

/// Puts a value at a path. `None`: something that is not a table is on the way there, or something is there already.
fn put(into: &mut Map<String, Value>, path: &[String], value: Value) -> Option<()> {
    let (last, above) = path.split_last()?;
    let mut table = into;
    for name in above {
        table = table.entry(name).or_insert_with(|| Map::new().into()).as_object_mut()?;
    }
    table.insert(last.clone(), value).is_none().then_some(())
}

/// Lays one tree over another: sections are merged, fields are replaced as a whole.
fn overlay(below: &mut Map<String, Value>, over: Map<String, Value>, path: &mut Vec<String>) {
    for (name, value) in over {
        path.push(name);
        let name = path.last().map_or("", String::as_str).to_owned();
        match (below.get_mut(&name), value) {
            (Some(Value::Object(below)), Value::Object(over)) if is_section(path) => overlay(below, over, path),
            (_, value) => _ = below.insert(name, value),
        }
        path.pop();
    }
}

/// What to say of a name that is not known.
pub(super) fn unknown(name: &str, known: &[impl AsRef<str>]) -> String {
    let mut near: Vec<(usize, &str)> =
        known.iter().map(AsRef::as_ref).map(|k| (distance(name, k), k)).filter(|(d, _)| *d <= 3).collect();
    near.sort_unstable();
    let names = |names: Vec<&str>| names.join(", ");
    match near.is_empty() {
        false => format!("is not a setting; is it {}?", names(near.into_iter().take(3).map(|(_, k)| k).collect())),
        true => format!("is not a setting; there are {}", names(known.iter().map(AsRef::as_ref).collect())),
    }
}

/// How many letters must be put in, taken out or changed to make one word the other. Beyond a word's length it does not matter.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().take(100).collect(), b.chars().take(100).collect());
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut left = i + 1;
        let mut next = vec![left];
        for ((y, above), diagonal) in b.iter().zip(row.iter().skip(1)).zip(&row) {
            left = (left + 1).min(above + 1).min(diagonal + usize::from(x != y));
            next.push(left);
        }
        row = next;
    }
    row.last().copied().unwrap_or(a.len())
}

/// A message up to what may be a URL with a login: a value in the wrong place is quoted in what is said of it.
pub(super) fn scrubbed(message: &str) -> String {
    message.split_once("://").map_or_else(|| message.to_owned(), |(before, _)| format!("{before}://***"))
}

/// The problems of an error that has some.
pub(super) fn problems_of(e: Error) -> Problems {
    match e {
        Error::Invalid(problems) => problems,
        other => {
            let mut problems = Problems::default();
            problems.add("settings", other.to_string());
            problems
        }
    }
}
