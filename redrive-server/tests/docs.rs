//! What docs/ promises: the dashboard and the alerts name metrics and labels that there are, every alert has its place in the
//! runbook, every metric is explained, links lead somewhere, and the tests that docs/sources.md names are there.
//!
//! Metrics are read from the source: from calls of `counter!`, `gauge!` and `histogram!` with a name in them, and from the
//! transitions of `engine/signals.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: impl AsRef<Path>) -> String {
    let path = repository().join(path);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// All files below a directory whose names end so.
fn files(below: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(below).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path, ending));
        } else if path.to_string_lossy().ends_with(ending) {
            found.push(path);
        }
    }
    found.sort();
    found
}

#[derive(Clone, Debug, Default)]
struct Metric {
    is_histogram: bool,
    labels: BTreeSet<String>,
}

/// Every metric that the code counts, by name.
fn metrics() -> BTreeMap<String, Metric> {
    let mut all = BTreeMap::new();
    for source in ["redrive/src", "redrive-server/src"].iter().flat_map(|dir| files(&repository().join(dir), ".rs")) {
        let text = fs::read_to_string(source).unwrap();
        for (call, is_histogram) in [("counter!(", false), ("gauge!(", false), ("histogram!(", true)] {
            for arguments in text.split(call).skip(1) {
                let arguments = arguments.split(')').next().unwrap_or_default();
                let mut quoted = arguments.split('"').skip(1).step_by(2).map(str::to_owned);
                if let Some(name) = quoted.next().filter(|name| name.starts_with("redrive_")) {
                    all.insert(name, Metric { is_histogram, labels: quoted.collect() });
                }
            }
        }
    }
    let signals = read("redrive/src/engine/signals.rs");
    for transition in signals.lines().filter(|line| line.trim_start().starts_with("(Self::")) {
        let name = transition.split('"').nth(1).unwrap();
        all.insert(name.into(), Metric { is_histogram: false, labels: ["method".into()].into() });
    }
    assert!(all.len() >= 20 && all.contains_key("redrive_done") && all.contains_key("redrive_depth"), "{all:?}");
    all
}

/// The metric that a name in a query is about: a histogram has a sum and a count as well.
fn find<'m>(all: &'m BTreeMap<String, Metric>, name: &str) -> Option<&'m Metric> {
    let part = ["_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
    let whole = part.and_then(|name| all.get(name)).filter(|metric| metric.is_histogram);
    all.get(name).or(whole)
}

/// Names of metrics in a query, each with what follows it.
fn named(query: &str) -> Vec<(&str, &str)> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let starts = query.match_indices("redrive_").map(|(at, _)| at);
    let whole = starts.filter(|at| !query[..*at].ends_with(is_part));
    whole.map(|at| query[at..].split_at(query[at..].find(|c| !is_part(c)).unwrap_or(query.len() - at))).collect()
}

/// The labels that a query groups by.
fn grouped(query: &str) -> Vec<&str> {
    let lists = query.split("by (").skip(1).map(|rest| rest.split(')').next().unwrap_or_default());
    lists.flat_map(|list| list.split(',')).map(str::trim).collect()
}

/// What is wrong with a query.
fn problems(all: &BTreeMap<String, Metric>, query: &str) -> Vec<String> {
    let mut problems = Vec::new();
    for (name, rest) in named(query) {
        let Some(metric) = find(all, name) else {
            problems.push(format!("there is no metric {name}"));
            continue;
        };
        let has = |label: &str| {
            let quantiles = metric.is_histogram && all.contains_key(name) && label == "quantile";
            quantiles || ["job", "instance"].contains(&label) || metric.labels.contains(label)
        };
        let selected = rest.strip_prefix('{').and_then(|rest| rest.split_once('}')).map_or("", |(labels, _)| labels);
        let selected = selected.split(',').filter_map(|label| label.split(['=', '!']).next()).map(str::trim);
        let wanted = selected.filter(|label| !label.is_empty()).chain(grouped(query));
        problems.extend(wanted.filter(|label| !has(label)).map(|label| format!("{name} has no label {label}")));
    }
    problems
}

#[test]
fn the_check_itself_finds_what_is_wrong() {
    let all = metrics();
    for right in [
        "sum by (method) (rate(redrive_done{job=~\"$job\", method=\"x\"}[5m]))",
        "redrive_attempt_seconds{quantile=\"0.99\"} + redrive_attempt_seconds_sum",
        "max(redrive_unhandled) > 0 or up == 0",
    ] {
        assert_eq!(problems(&all, right), Vec::<String>::new(), "{right}");
    }
    for wrong in [
        "redrive_nonsense",
        "rate(redrive_done_total[5m])",
        "redrive_done_sum",
        "redrive_fenced{method=\"x\"}",
        "sum by (method) (redrive_notices_failed)",
        "redrive_done{quantile=\"0.99\"}",
        "redrive_attempt_seconds_sum{quantile=\"0.99\"}",
    ] {
        assert_eq!(problems(&all, wrong).len(), 1, "{wrong}");
    }
    assert_eq!(anchor("What's `x`: a, b – and *c*?"), "whats-x-a-b--and-c");
}

fn dashboard() -> Value {
    serde_json::from_str(&read("docs/operate/grafana.json")).unwrap()
}

/// The values of all fields of these names, however deep.
fn fields<'v>(value: &'v Value, names: &[&str], found: &mut Vec<&'v str>) {
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                found.extend(value.as_str().filter(|_| names.contains(&name.as_str())));
                fields(value, names, found);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| fields(item, names, found)),
        _ => {}
    }
}

#[test]
fn the_dashboard_asks_for_metrics_that_there_are() {
    let (all, dashboard) = (metrics(), dashboard());
    let mut queries = Vec::new();
    fields(&dashboard, &["expr", "query", "definition"], &mut queries);
    assert!(queries.iter().filter(|query| query.contains("redrive_")).count() > 20, "{queries:?}");
    for query in queries {
        assert_eq!(problems(&all, query), Vec::<String>::new(), "{query}");
    }
}

#[test]
fn the_dashboard_is_one_that_grafana_reads() {
    let dashboard = dashboard();
    assert!(dashboard["schemaVersion"].as_u64() >= Some(39) && dashboard["title"].is_string());
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len(), "ids are unique");
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        assert!(panel["gridPos"]["w"].is_u64() && !panel["targets"].as_array().unwrap().is_empty(), "{panel}");
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{panel}");
    }
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let defined: BTreeSet<&str> = variables.iter().map(|variable| variable["name"].as_str().unwrap()).collect();
    assert_eq!(defined, ["datasource", "job", "method"].into());
}

/// An alert: its name, its query, its place in the runbook.
#[derive(Debug, Default)]
struct Alert {
    name: String,
    query: String,
    runbook: String,
}

/// The alerts of the file, which is YAML of a simple kind: what is indented deeper belongs to the field before it.
fn alerts() -> Vec<Alert> {
    let text = read("docs/operate/alerts.yml");
    let mut alerts: Vec<Alert> = Vec::new();
    let mut in_query = false;
    for line in text.lines().filter(|line| !line.trim_start().starts_with('#')) {
        let field = line.trim_start().trim_start_matches("- ");
        if let Some(name) = field.strip_prefix("alert: ") {
            alerts.push(Alert { name: name.into(), ..Alert::default() });
        }
        let Some(alert) = alerts.last_mut() else { continue };
        let depth = line.len() - line.trim_start().len();
        in_query = field.starts_with("expr:") || (in_query && depth > 8);
        if in_query {
            alert.query += field.trim_start_matches("expr:").trim_start_matches(" |");
            alert.query += " ";
        }
        if let Some(place) = field.strip_prefix("runbook_url: ") {
            alert.runbook = place.into();
        }
    }
    assert!(alerts.len() > 10, "{alerts:?}");
    alerts
}

#[test]
fn alerts_ask_for_metrics_that_there_are() {
    let all = metrics();
    for alert in alerts() {
        assert!(alert.query.contains("redrive_") || alert.query.contains("up{"), "{alert:?}");
        assert_eq!(problems(&all, &alert.query), Vec::<String>::new(), "{alert:?}");
    }
}

#[test]
fn alerts_have_their_place_in_the_runbook() {
    let places = anchors(&read("docs/operate/runbook.md"));
    for alert in alerts() {
        let place = alert.runbook.strip_prefix("docs/operate/runbook.md#");
        assert!(place.is_some_and(|place| places.contains(place)), "{}: {:?}", alert.name, alert.runbook);
    }
}

#[test]
fn every_metric_is_explained() {
    let page = read("docs/operate/monitoring.md");
    let missing: Vec<String> = metrics().into_keys().filter(|name| !page.contains(&format!("`{name}`"))).collect();
    assert_eq!(missing, Vec::<String>::new(), "not in docs/operate/monitoring.md");
}

/// A page without its code: neither its headings nor its links are any.
fn prose(page: &str) -> String {
    let mut in_code = false;
    let mut lines = Vec::new();
    for line in page.lines() {
        let is_fence = line.trim_start().starts_with("```");
        if !is_fence && !in_code {
            lines.push(line);
        }
        in_code ^= is_fence;
    }
    lines.join("\n")
}

/// What a heading is called in a link.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn anchors(page: &str) -> BTreeSet<String> {
    let page = prose(page);
    page.lines().filter(|line| line.starts_with('#')).map(|line| anchor(line.trim_start_matches('#'))).collect()
}

/// Where the links of a page lead, without those to other sites.
fn links(page: &str) -> Vec<String> {
    let page = prose(page);
    let all = page.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    all.filter(|link| !link.contains("://")).map(str::to_owned).collect()
}

#[test]
fn links_lead_somewhere() {
    let mut pages = files(&repository().join("docs"), ".md");
    pages.extend(["README.md", "README.zh-CN.md", "CONTRIBUTING.md", "DESIGN.md"].map(|page| repository().join(page)));
    let mut broken = Vec::new();
    for page in pages {
        let text = fs::read_to_string(&page).unwrap();
        for link in links(&text) {
            let (file, place) = link.split_once('#').unwrap_or((&link, ""));
            let target = if file.is_empty() { page.clone() } else { page.with_file_name("").join(file) };
            let is_there = match place {
                "" => target.exists(),
                place => fs::read_to_string(&target).is_ok_and(|target| anchors(&target).contains(place)),
            };
            if !is_there {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert_eq!(broken, Vec::<String>::new());
}

#[test]
fn every_page_is_in_the_index() {
    let (docs, index) = (repository().join("docs"), links(&read("docs/README.md")));
    let pages = files(&docs, ".md").into_iter().filter(|page| !page.ends_with("README.md"));
    let names = pages.map(|page| page.strip_prefix(&docs).unwrap().to_string_lossy().into_owned());
    let missing: Vec<String> = names.filter(|name| !index.contains(name)).collect();
    assert_eq!(missing, Vec::<String>::new());
}

/// `tests/x.rs::name` in backticks: the file, and a function in it. Paths begin in the library's crate unless they begin in another.
fn named_tests(page: &str) -> BTreeSet<(String, String)> {
    let quoted = page.split('`').skip(1).step_by(2);
    let tests = quoted.filter_map(|text| text.split_once(".rs::")).filter(|(_, name)| !name.is_empty());
    tests
        .map(|(path, name)| match path.split('/').next() {
            Some("redrive-server" | "redrive-macros") => (format!("{path}.rs"), name.to_owned()),
            _ => (format!("redrive/{path}.rs"), name.to_owned()),
        })
        .collect()
}

#[test]
fn the_tests_of_the_sources_are_there_and_all_of_them_are_named() {
    let page = read("docs/sources.md");
    let named = named_tests(&page);
    assert!(named.len() > 200, "only {} tests are named", named.len());
    for (path, name) in &named {
        let name = name.rsplit("::").next().unwrap();
        assert!(read(path).contains(&format!("fn {name}(")), "{path} has no test {name}");
    }
    for source in
        ["redrive", "redrive-server", "redrive-macros"].iter().flat_map(|dir| files(&repository().join(dir), ".rs"))
    {
        let text = fs::read_to_string(&source).unwrap();
        for name in text
            .split("fn source_")
            .skip(1)
            .filter_map(|rest| rest.split('(').next())
            .filter(|name| !name.contains('"'))
        {
            assert!(
                page.contains(&format!("source_{name}`")),
                "docs/sources.md does not name source_{name} of {}",
                source.display()
            );
        }
    }
    for row in page.lines().filter(|line| line.starts_with("| ")) {
        assert_eq!(row.replace("\\|", "").matches('|').count(), 4, "three cells: {row}");
    }
}
