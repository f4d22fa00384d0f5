//! Nodes: who is alive, who looks after which shards, who does the upkeep.

use std::fmt::Write as _;
use std::time::Duration;

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use redrive::registry::RegistryKind;
use redrive::store::{Moment, Node};
use redrive::{NodeNumber, SHARDS, Timestamp};

use crate::server::App;
use crate::server::cluster;
use crate::server::problem::Answer;

use super::html::{self, Html};
use super::overview::LATE;
use super::tasks::tag;
use super::visit::{Frame, Visit};
use super::words::{Words, fill};

/// A node is called quiet after this long without a beat, or after half of its lease if that is longer.
const QUIET: Duration = Duration::from_secs(5);
/// How far they are behind is looked at every minute by one of them; what is older says nothing of now.
const LAG_OF: Duration = Duration::from_secs(300);
/// Colours of the map; more nodes than that share them, and differ by their letters.
const COLOURS: usize = 8;

#[derive(Template)]
#[template(path = "nodes.html")]
struct Page {
    f: Frame,
    nodes: Vec<Row>,
    maps: Vec<Map>,
    gone: Vec<Row>,
    lag: Option<Lag>,
    is_by_database: bool,
    has_different_leases: bool,
}

/// How long what is due waits.
struct Lag {
    class: &'static str,
    value: String,
}

struct Row {
    letter: String,
    class: String,
    number: NodeNumber,
    name: String,
    build: String,
    state: Html,
    beat: Html,
    lease: String,
    started: Html,
    methods: Vec<String>,
    is_here: bool,
    does_upkeep: bool,
}

/// The shards of methods that the same nodes handle.
struct Map {
    methods: Vec<String>,
    svg: Html,
    /// Letter, colour, and how many shards are its.
    owners: Vec<(String, String, usize)>,
}

pub(super) async fn show(State(app): State<App>, visit: Visit) -> Answer<Response> {
    let (f, now) = (visit.frame, app.clock.now());
    let (nodes, upkeep, minutes) =
        tokio::try_join!(app.store.nodes(), app.store.held_lock("upkeep", now), app.store.history(now - LAG_OF, 1))?;
    let upkeep = upkeep.map(|lock| lock.owner).unwrap_or_default();
    let here = app.engine.as_ref().map(redrive::Engine::number);
    let (alive, mut dead): (Vec<&Node>, Vec<&Node>) = nodes.iter().partition(|node| !node.dead);
    dead.sort_by_key(|node| std::cmp::Reverse(node.beat_at));
    let row = |(i, node): (usize, &&Node)| Row {
        letter: letter(i),
        class: colour(i),
        number: node.number,
        name: node.registration.name.clone(),
        build: node.registration.build.clone(),
        state: state(node, now, f.w),
        beat: html::ago(node.beat_at),
        lease: lease(node, f.w),
        started: html::ago(node.started_at),
        methods: node.registration.methods.clone(),
        is_here: Some(node.number) == here,
        does_upkeep: upkeep == node.number.to_string(),
    };
    let page = Page {
        nodes: alive.iter().enumerate().map(row).collect(),
        gone: dead.iter().enumerate().map(row).collect(),
        maps: maps(&alive, &nodes, f.w),
        lag: lag(&minutes, f.w),
        is_by_database: app.settings().registry.kind == RegistryKind::Database,
        has_different_leases: have_different_leases(&alive),
        f: f.clone(),
    };
    Ok(f.show(&page))
}

/// A node's lease; a dash for a node of an older build, which states none.
fn lease(node: &Node, w: &Words) -> String {
    let lease = node.registration.lease;
    if lease.is_zero() { "–".to_owned() } else { html::duration(lease, w) }
}

fn have_different_leases(alive: &[&Node]) -> bool {
    let mut leases = alive.iter().map(|node| node.registration.lease);
    leases.next().is_some_and(|first| leases.any(|other| other != first))
}

/// How far all of them together are behind, as the node that does the upkeep saw it last.
fn lag(minutes: &[Moment], w: &Words) -> Option<Lag> {
    let lag = minutes.iter().rev().find_map(|minute| minute.lag)?;
    let is_late = lag >= LATE;
    let value = if lag < Duration::from_secs(1) { w.lag_none.to_owned() } else { html::duration(lag, w) };
    Some(Lag { class: if is_late { "warn" } else { "" }, value })
}

fn state(node: &Node, now: Timestamp, w: &Words) -> Html {
    match cluster::state(node) {
        "dead" if node.leaving => tag("", w.node_left),
        "dead" => tag("bad", w.node_dead),
        "leaving" => tag("warn", w.node_leaving),
        _ if now.since(node.beat_at) >= QUIET.max(node.registration.lease / 2) => tag("warn", w.node_quiet),
        _ => tag("good", w.node_alive),
    }
}

/// A, B … Z, then A1, B1 …
fn letter(i: usize) -> String {
    let letter = char::from(b'A' + (i % 26) as u8);
    if i < 26 { letter.to_string() } else { format!("{letter}{}", i / 26) }
}

fn colour(i: usize) -> String {
    format!("n{}", i % COLOURS)
}

/// One map for all methods that the same nodes handle: they are shared out alike.
fn maps(alive: &[&Node], all: &[Node], w: &Words) -> Vec<Map> {
    let mut maps: Vec<(Vec<Option<usize>>, Vec<String>)> = Vec::new();
    let mut methods: Vec<&String> = alive.iter().flat_map(|node| &node.registration.methods).collect();
    methods.sort_unstable();
    methods.dedup();
    for method in methods {
        let mut owners = vec![None; usize::from(SHARDS)];
        for (i, node) in alive.iter().enumerate() {
            for shard in node.shards(method, all) {
                owners.get_mut(usize::from(shard)).into_iter().for_each(|owner| *owner = Some(i));
            }
        }
        match maps.iter_mut().find(|(known, _)| *known == owners) {
            Some((_, methods)) => methods.push(method.clone()),
            None => maps.push((owners, vec![method.clone()])),
        }
    }
    let map = |(owners, methods): (Vec<Option<usize>>, Vec<String>)| {
        let of = |i| owners.iter().filter(|owner| **owner == Some(i)).count();
        let counts = (0..alive.len()).map(|i| (letter(i), colour(i), of(i))).filter(|(_, _, n)| *n > 0);
        Map { svg: drawn(&owners, w), owners: counts.collect(), methods }
    };
    maps.into_iter().map(map).collect()
}

const CELL: usize = 30;
const COLUMNS: usize = 16;

/// 64 cells, each with the letter of its owner.
fn drawn(owners: &[Option<usize>], w: &Words) -> Html {
    let (width, height) = (COLUMNS * CELL, owners.len().div_ceil(COLUMNS) * CELL);
    let said = html::escape(w.shard_map);
    let mut svg = format!("<svg class=\"shards\" viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{said}\">");
    for (shard, owner) in owners.iter().enumerate() {
        let (x, y) = (shard % COLUMNS * CELL, shard / COLUMNS * CELL);
        let (class, text) = owner.map_or(("none".into(), "–".into()), |i| (colour(i), letter(i)));
        let title = html::escape(&fill(w.shard_of, &[&shard, &text]));
        let side = CELL - 3;
        _ = write!(
            svg,
            "<g class=\"{class}\"><title>{title}</title><rect x=\"{x}\" y=\"{y}\" width=\"{side}\" height=\"{side}\" rx=\"4\"/>\
             <text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{text}</text></g>",
            x + side / 2,
            y + side / 2 + 5
        );
    }
    Html(svg + "</svg>")
}

#[cfg(test)]
mod tests {
    use super::super::words::Lang;
    use super::*;

    #[test]
    fn every_shard_is_drawn_with_its_owner() {
        let owners: Vec<_> = (0..64).map(|shard| (shard % 3 < 2).then_some(shard % 3)).collect();
        let svg = drawn(&owners, Lang::En.words()).to_string();
        assert_eq!((svg.matches("<rect").count(), svg.matches(">A</text>").count()), (64, 22));
        assert_eq!((svg.matches(">–</text>").count(), svg.contains("style")), (21, false));
    }

    #[test]
    fn more_nodes_than_letters_differ_still() {
        assert_eq!([letter(0), letter(25), letter(26), letter(53)], ["A", "Z", "A1", "B2"]);
    }
}
