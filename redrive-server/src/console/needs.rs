//! What needs somebody, worst first: what the overview begins with.

use std::sync::Arc;

use redrive::gate::{Gate, GateState};
use redrive::guard::err_status;
use redrive::store::{ChannelState, Count, Node, Paused};
use redrive::{Lane, Timestamp};

use crate::server::guards::Guarded;

use super::guards;
use super::html::{self, Html};
use super::overview::{Counts, HOUR, LATE, of_method};
use super::visit::Frame;
use super::words::{Words, fill};

/// Something that needs somebody.
pub(super) struct Need {
    pub(super) class: &'static str,
    pub(super) what: String,
    pub(super) why: String,
    pub(super) when: Option<Html>,
    pub(super) link: String,
    pub(super) do_it: &'static str,
}

/// What there is to see.
pub(super) struct Seen {
    pub(super) counts: Arc<Counts>,
    pub(super) gates: Vec<Gate>,
    pub(super) nodes: Vec<Node>,
    pub(super) paused: Vec<Paused>,
    pub(super) troubles: Vec<&'static str>,
    pub(super) unowned: Count,
    /// How many sagas are stuck.
    pub(super) stuck: u64,
    pub(super) guards: Vec<Arc<Guarded>>,
    /// Channels that people are told by.
    pub(super) channels: Vec<ChannelState>,
}

/// What needs somebody, worst first.
pub(super) fn needs(seen: &Seen, f: &Frame, now: Timestamp) -> Vec<Need> {
    let w = f.w;
    let mut all: Vec<Need> = seen.troubles.iter().map(|trouble| trouble_of(trouble, w)).collect();
    let gates = open_gates(seen);
    all.extend(gates.iter().map(|(gate, waiting)| open_gate(gate, *waiting, w)));
    if seen.unowned.n > 0 {
        let what = fill(w.need_dead, &[&html::count(seen.unowned)]);
        let reasons = seen.counts.overview.dead_by_reason.iter();
        let why = reasons.map(|(reason, n)| format!("{} {}", w.reason(*reason), html::count(*n))).collect::<Vec<_>>();
        let (why, link) = (why.join(" · "), "/dead?owned=no".into());
        all.push(Need { class: "bad", what, why, when: None, link, do_it: w.need_dead_do });
    }
    if seen.stuck > 0 {
        let what = fill(w.need_stuck, &[&html::up_to(seen.stuck)]);
        let (why, link) = (w.need_stuck_why.to_owned(), "/sagas?state=stuck".into());
        all.push(Need { class: "bad", what, why, when: None, link, do_it: w.need_dead_do });
    }
    all.extend(seen.guards.iter().filter_map(|guarded| guarded_table(guarded, f)));
    all.extend(seen.channels.iter().filter(|channel| channel.tries > 0).map(|channel| failing_channel(channel, w)));
    all.extend(methods(seen, &gates, w, now));
    all.extend(seen.paused.iter().map(|paused| paused_method(paused, w)));
    let died = seen.nodes.iter().filter(|node| node.dead && !node.leaving && now.since(node.beat_at) < HOUR);
    all.extend(died.map(|node| dead_node(node, w)));
    all
}

/// Methods whose tasks wait for too long.
fn methods(seen: &Seen, gates: &[(&Gate, Option<Count>)], w: &Words, now: Timestamp) -> Vec<Need> {
    let mut all = Vec::new();
    let alive: Vec<&Node> = seen.nodes.iter().filter(|node| !node.dead && !node.leaving).collect();
    for method in seen.counts.overview.methods.iter().filter(|method| method.tasks.n > 0 && !method.paused) {
        let name = &method.method;
        let late = method.oldest_due.filter(|due| now.since(*due) >= LATE);
        let is_handled = alive.iter().any(|node| node.registration.methods.contains(name));
        let need = |what: &str, why: &str| Need {
            class: "warn",
            what: fill(what, &[name, &html::count(method.tasks)]),
            why: why.to_owned(),
            when: late.map(html::ago),
            link: of_method("/tasks", name),
            do_it: w.need_tasks_do,
        };
        match (is_handled, late) {
            (false, _) => all.push(need(w.need_unhandled, w.need_unhandled_why)),
            (true, Some(_)) if gates.iter().any(|(gate, _)| gate.lane == Lane::of(name)) => {} // that has been said
            (true, Some(_)) => all.push(need(w.need_late, w.need_late_why)),
            (true, None) => {}
        }
    }
    all
}

fn guarded_table(guarded: &Guarded, f: &Frame) -> Option<Need> {
    let w = f.w;
    let rows = guarded.counts.get(&err_status::MANUAL.to_string()).copied().unwrap_or(0);
    let name = &guarded.service_name;
    let (what, why, link) = match guards::trouble(guarded, f) {
        Some(why) => (fill(w.need_guard, &[name]), why, "/guards".into()),
        None if rows > 0 => (fill(w.need_rows, &[name, &html::up_to(rows)]), String::new(), guards::link(name)),
        None => return None,
    };
    Some(Need { class: "bad", what, why, when: None, link, do_it: w.need_dead_do })
}

fn failing_channel(channel: &ChannelState, w: &Words) -> Need {
    Need {
        class: "bad",
        what: fill(w.need_channel, &[&channel.name, &channel.tries]),
        why: channel.last_error.clone().unwrap_or_default(),
        when: channel.failed_at.map(html::ago),
        link: "/channels".into(),
        do_it: w.need_channel_do,
    }
}

fn trouble_of(trouble: &str, w: &Words) -> Need {
    let what = w.need_trouble.to_owned();
    Need { class: "bad", what, why: trouble.to_owned(), when: None, link: "/readyz".into(), do_it: w.need_trouble_do }
}

/// Gates that are not closed, with what waits at them if that is known; most first.
fn open_gates(seen: &Seen) -> Vec<(&Gate, Option<Count>)> {
    let waiting = |gate: &Gate| {
        let method = seen.counts.overview.methods.iter().find(|method| gate.lane == Lane::of(&method.method));
        method.map(|method| method.tasks).filter(|tasks| tasks.n > 0)
    };
    let open = seen.gates.iter().filter(|gate| gate.effective() != GateState::Closed);
    let mut all: Vec<_> = open.map(|gate| (gate, waiting(gate))).collect();
    all.sort_by_key(|(_, waiting)| std::cmp::Reverse(waiting.map(|tasks| tasks.n)));
    all
}

fn open_gate(gate: &Gate, waiting: Option<Count>, w: &Words) -> Need {
    let what = match (gate.held.is_some(), gate.effective()) {
        (true, _) => w.need_gate_held,
        (false, GateState::HalfOpen) => w.need_gate_half,
        (false, _) => w.need_gate,
    };
    Need {
        class: "bad",
        what: fill(what, &[&gate.name]),
        why: gate
            .why
            .iter()
            .cloned()
            .chain(waiting.map(|n| fill(w.need_gate_n, &[&html::count(n)])))
            .collect::<Vec<_>>()
            .join(" · "),
        when: Some(html::ago(gate.failing_since.unwrap_or(gate.changed_at))),
        link: "/gates".into(),
        do_it: w.need_gate_do,
    }
}

fn paused_method(paused: &Paused, w: &Words) -> Need {
    let why = paused.by.as_ref().map(|by| fill(w.need_paused_by, &[by])).unwrap_or_default();
    let what = fill(w.need_paused, &[&paused.method]);
    Need {
        class: "warn",
        what,
        why,
        when: Some(html::ago(paused.since)),
        link: "/methods".into(),
        do_it: w.need_paused_do,
    }
}

fn dead_node(node: &Node, w: &Words) -> Need {
    let what = fill(w.need_node, &[&node.registration.name]);
    let (why, when) = (w.need_node_why.to_owned(), Some(html::ago(node.beat_at)));
    Need { class: "warn", what, why, when, link: "/nodes".into(), do_it: w.need_node_do }
}
