//! Methods and gates: what waits for which, what holds it back, and the buttons for it. What is worst comes first.
//!
//! Counts of calls and how long they took are this server's own: each node counts for itself.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

use askama::Template;
use axum::extract::State;
use axum::response::{Redirect, Response};
use redrive::gate::{Gate, GateState, Hold};
use redrive::resilience::{Tally, Trip};
use redrive::store::GateAction;
use redrive::{Engine, Lane, Timestamp};
use serde_json::Value;

use crate::server::cluster::{self, MethodShown};
use crate::server::input::{LONGEST_NOTE, Names, noted};
use crate::server::problem::{Answer, Problem};
use crate::server::{App, gates};

use super::fields::segment;
use super::html::{self, Html};
use super::overview::{LATE, counts, of_method};
use super::tasks::tag;
use super::visit::{Act, Frame, Said, Visit};
use super::words::{Words, fill};

#[derive(Template)]
#[template(path = "methods.html")]
struct Page {
    f: Frame,
    methods: Vec<Row>,
    gates: Vec<GateRow>,
    targets: Vec<Target>,
}

struct Row {
    /// How bad it is: what is worst comes first.
    worst: Worst,
    /// Among equals those for which most waits.
    waiting: u64,
    n: usize,
    name: String,
    /// Where its buttons send to.
    act: String,
    tasks: String,
    tasks_link: String,
    dead: String,
    dead_link: String,
    oldest: Option<Html>,
    states: Vec<Html>,
    limits: Vec<(String, String)>,
    took: Option<String>,
    is_paused: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Worst {
    /// The first of them comes first.
    Gate,
    Unhandled,
    Paused,
    Late,
    Dead,
    #[default]
    Nothing,
}

impl Worst {
    fn class(self) -> &'static str {
        match self {
            Self::Gate | Self::Unhandled => "bad",
            Self::Paused | Self::Late => "warn",
            Self::Dead | Self::Nothing => "",
        }
    }
}

struct GateRow {
    n: usize,
    name: String,
    act: String,
    state: Html,
    class: &'static str,
    why: String,
    facts: Vec<Html>,
    tallies: Vec<String>,
    is_held: bool,
    /// Whether the database knows it: one that has never opened cannot be reset.
    is_known: bool,
}

/// A service that HTTP tasks name.
struct Target {
    name: String,
    base_url: String,
    limits: Vec<(String, String)>,
}

pub(super) async fn show(State(app): State<App>, visit: Visit) -> Answer<Response> {
    let (f, now) = (visit.frame, app.clock.now());
    let counted = counts(&app).await?.overview.clone();
    let (methods, gates) = (Box::pin(cluster::methods_of(&app, counted)).await?, gates::all(&app).await?);
    let times = app.metrics.as_ref().map(|metrics| times(&metrics.render())).unwrap_or_default();
    let mut rows: Vec<Row> =
        methods.iter().enumerate().map(|(n, method)| row(n, method, &gates, &times, now, f.w)).collect();
    rows.sort_by(|a, b| (a.worst, Reverse(a.waiting), &a.name).cmp(&(b.worst, Reverse(b.waiting), &b.name)));
    let page = Page {
        methods: rows,
        gates: gate_rows(&app, &gates, &methods, f.w),
        targets: if f.is_operator() { targets(&app) } else { Vec::new() },
        f: f.clone(),
    };
    Ok(f.show(&page))
}

/// Gates have no page of their own.
pub(super) async fn gates_are_there(_: Visit) -> Redirect {
    Redirect::to("/methods#gates")
}

fn row(n: usize, of: &MethodShown, gates: &[Gate], times: &Times, now: Timestamp, w: &Words) -> Row {
    let (open, held) = gates_of(&of.method, gates);
    let oldest = of.oldest_due.filter(|due| *due <= now);
    let is_late = oldest.is_some_and(|due| now.since(due) >= LATE);
    let has_tasks = of.tasks.n > 0;
    let worst = match () {
        () if open > 0 => Worst::Gate,
        () if of.nodes == 0 && has_tasks => Worst::Unhandled,
        () if of.paused.is_some() => Worst::Paused,
        () if is_late => Worst::Late,
        () if of.dead.n > 0 => Worst::Dead,
        () => Worst::Nothing,
    };
    let mut states: Vec<Html> = of.paused.iter().map(|paused| paused_tag(paused, w)).collect();
    states.extend(held.map(|gate| state(gate, w)));
    let parts = open - usize::from(held.is_some_and(|gate| gate.effective() != GateState::Closed));
    let parts_open = || tag("bad", &fill(w.gates_open_n, &[&parts]));
    states.extend((parts > 0).then(|| Html(format!("<a href=\"#gates\">{}</a>", parts_open()))));
    states.extend((of.nodes == 0 && has_tasks).then(|| tag("bad", w.nobody_handles)));
    states.extend((of.nodes > 0).then(|| Html(html::escape(&fill(w.on_n_nodes, &[&of.nodes])))));
    Row {
        worst,
        waiting: of.tasks.n,
        n,
        name: of.method.clone(),
        act: format!("/methods/{}", segment(&of.method)),
        tasks: html::count(of.tasks),
        tasks_link: of_method("/tasks", &of.method),
        dead: html::count(of.dead),
        dead_link: of_method("/dead", &of.method),
        oldest: oldest.map(html::ago),
        states,
        limits: said(&of.settings),
        took: times.of(&of.method, w),
        is_paused: of.paused.is_some(),
    }
}

fn paused_tag(paused: &cluster::PausedShown, w: &Words) -> Html {
    let by = paused.by.as_ref().map(|by| format!(" · {}", html::escape(&fill(w.by, &[by])))).unwrap_or_default();
    Html(format!("{} {}{by}", tag("warn", w.is_paused), html::ago(paused.since)))
}

/// How many gates of a method are not closed, and the one that is its own if that is held or not closed. Hosts of HTTP tasks have a
/// gate each.
fn gates_of<'g>(method: &str, gates: &'g [Gate]) -> (usize, Option<&'g Gate>) {
    let is_own = |gate: &&Gate| gate.lane == Lane::of(method);
    let is_of = |gate: &&Gate| is_own(gate) || gate.lane == Lane::part(method, &gate.name);
    let is_open = |gate: &&Gate| gate.effective() != GateState::Closed;
    let open = gates.iter().filter(is_of).filter(is_open).count();
    (open, gates.iter().find(is_own).filter(|gate| is_open(gate) || gate.held.is_some()))
}

/// What the settings say of a method or a target, one field each. A gate's is long, and shown where the gate is.
fn said(settings: &Value) -> Vec<(String, String)> {
    let fields = settings.as_object().into_iter().flatten();
    let is_said = |(name, value): &(&String, &Value)| *name != "gate" && *value != &Value::Bool(false);
    fields.filter(is_said).map(|(name, value)| (name.clone(), short(value))).collect()
}

/// A rate as people say it, the rest as it is set.
fn short(value: &Value) -> String {
    match (&value["tasks"], &value["per"], value) {
        (Value::Number(tasks), Value::String(per), _) => format!("{tasks} / {per}"),
        (_, _, Value::String(text)) => text.clone(),
        _ => value.to_string(),
    }
}

fn state(gate: &Gate, w: &Words) -> Html {
    match (gate.held, gate.state) {
        (Some(Hold::Open), _) => tag("bad", w.gate_held_open),
        (Some(Hold::Closed), _) => tag("warn", w.gate_held_closed),
        (None, GateState::Open) => tag("bad", w.gate_open),
        (None, GateState::HalfOpen) => tag("warn", w.gate_half_open),
        (None, GateState::Closed) => tag("good", w.gate_closed),
    }
}

/// Those that the database knows, worst first, and those of methods that have never opened but have counted calls here.
fn gate_rows(app: &App, gates: &[Gate], methods: &[MethodShown], w: &Words) -> Vec<GateRow> {
    let tallies = |lane| app.engine.as_ref().map(|engine: &Engine| engine.gate_tallies(lane)).unwrap_or_default();
    let mut known: Vec<&Gate> = gates.iter().collect();
    known.sort_by_key(|gate| (gate.effective() == GateState::Closed, gate.held.is_none()));
    let mut rows: Vec<GateRow> = known.into_iter().map(|gate| known_gate(gate, &tallies(gate.lane), w)).collect();
    for method in methods {
        let (lane, name) = (Lane::of(&method.method), method.method.clone());
        let counted = tallies(lane);
        if counted.is_empty() || gates.iter().any(|gate| gate.lane == lane) {
            continue;
        }
        let act = format!("/gates/{}", segment(&name));
        let (state, tallies) = (tag("good", w.gate_closed), in_words(&counted, w));
        let (class, why, facts) = ("", String::new(), Vec::new());
        rows.push(GateRow { n: 0, name, act, state, class, why, facts, tallies, is_held: false, is_known: false });
    }
    rows.iter_mut().enumerate().for_each(|(n, row)| row.n = n);
    rows
}

fn known_gate(gate: &Gate, tallies: &[Tally], w: &Words) -> GateRow {
    let effective = gate.effective();
    let mut facts = Vec::new();
    let fact = |word: &str, time| Html(format!("{} {}", html::escape(word), html::ago(time)));
    if effective == GateState::Open && gate.held.is_none() {
        facts.extend(gate.open_until.map(|until| fact(w.gate_probes_from, until)));
    }
    facts.extend(gate.failing_since.map(|since| fact(w.gate_failing_since, since)));
    if gate.state != GateState::Closed
        && let Some(share) = gate.probe_success()
    {
        let ended = gate.probes_passed + gate.probes_failed;
        let share = format!("{:.0}", share * 100.0);
        facts.push(Html(html::escape(&fill(w.gate_probes, &[&gate.probes_passed, &ended, &share]))));
    }
    if effective == GateState::HalfOpen {
        facts.push(Html(html::escape(&fill(w.gate_round, &[&gate.probes_allowed]))));
    }
    if gate.opens > 1 {
        facts.push(Html(html::escape(&fill(w.gate_opens, &[&gate.opens]))));
    }
    facts.push(fact(w.gate_changed, gate.changed_at));
    GateRow {
        n: 0,
        name: gate.name.clone(),
        act: format!("/gates/{}", gate.lane.0),
        state: state(gate, w),
        class: if effective == GateState::Closed { "" } else { "bad" },
        why: gate.why.clone().unwrap_or_default(),
        facts,
        // While it is open or held nothing is counted.
        tallies: if gate.state == GateState::Closed && gate.held.is_none() { in_words(tallies, w) } else { Vec::new() },
        is_held: gate.held.is_some(),
        is_known: true,
    }
}

/// How the rules stand, and where they open the gate.
fn in_words(tallies: &[Tally], w: &Words) -> Vec<String> {
    let percent = |share: f64| format!("{:.0}", share * 100.0);
    let one = |tally: &Tally| match &tally.trip {
        Trip::FailureRate { share, min_calls, .. } => {
            fill(w.tally_failed, &[&tally.bad, &tally.total, &percent(*share), min_calls])
        }
        Trip::SlowRate { share, min_calls, .. } => {
            fill(w.tally_slow, &[&tally.bad, &tally.total, &percent(*share), min_calls])
        }
        Trip::Consecutive(most) => fill(w.tally_row, &[&tally.bad, most]),
        Trip::Failures { count, within } => fill(w.tally_failures, &[&tally.bad, &html::duration(*within, w), count]),
    };
    tallies.iter().map(one).collect()
}

fn targets(app: &App) -> Vec<Target> {
    let settings = app.settings();
    let shown = |(name, target): (&String, &redrive::TargetSettings)| {
        let fields = said(&serde_json::to_value(target).unwrap_or_default());
        // Not shown: what is secret, and what is beside its name already.
        let hidden = ["base_url", "headers", "signing_secret"];
        let limits = fields.into_iter().filter(|(name, _)| !hidden.contains(&name.as_str())).collect();
        Target { name: name.clone(), base_url: target.base_url.clone(), limits }
    };
    settings.targets.iter().map(shown).collect()
}

/// How long attempts took on this server, by method: what its metrics say.
#[derive(Default)]
struct Times(HashMap<String, f64>);

const TOOK: &str = "redrive_attempt_seconds{";

fn times(metrics: &str) -> Times {
    let lines = metrics.lines().filter(|line| line.starts_with(TOOK)).filter_map(|line| line.rsplit_once(' '));
    Times(lines.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))).collect())
}

impl Times {
    fn of(&self, method: &str, w: &Words) -> Option<String> {
        let method = method.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let at = |quantile: &str| {
            let seconds = self.0.get(&format!("{TOOK}method=\"{method}\",quantile=\"{quantile}\"}}"))?;
            Duration::try_from_secs_f64(*seconds).ok().filter(|time| !time.is_zero())
        };
        let shown = |quantile: &str| at(quantile).map(|time| html::duration(time, w));
        Some(format!("{} · {} · {}", shown("0.5")?, shown("0.95")?, shown("0.99")?))
    }
}

/// Bytes of a method's name.
const LONGEST_METHOD: usize = 500;

/// Pauses or resumes.
pub(super) async fn act(State(app): State<App>, Names([method, action]): Names<2>, act: Act) -> Answer<Response> {
    if method.len() > LONGEST_METHOD {
        return Err(Problem::not_found("method", method));
    }
    let (paused, said) = match action.as_str() {
        "pause" => (true, Said::MethodPaused),
        "resume" => (false, Said::MethodResumed),
        other => return Err(Problem::not_found("action", other)),
    };
    let note = noted(act.fields.text("note"), LONGEST_NOTE)?;
    cluster::set_paused(&app, &method, paused, &act.visit.who.name, note).await?;
    app.wake();
    Ok(act.visit.frame.go("/methods", said, &method))
}

/// Holds, releases or resets.
pub(super) async fn act_on_gate(State(app): State<App>, Names([gate, action]): Names<2>, act: Act) -> Answer<Response> {
    let (doing, said) = match action.as_str() {
        "hold-open" => (GateAction::Hold(Hold::Open), Said::GateHeldOpen),
        "hold-closed" => (GateAction::Hold(Hold::Closed), Said::GateHeldClosed),
        "release" => (GateAction::Release, Said::GateReleased),
        "reset" => (GateAction::Reset, Said::GateReset),
        other => return Err(Problem::not_found("action", other)),
    };
    let note = noted(act.fields.text("note"), gates::LONGEST_WHY)?;
    let lane = gates::find(&app, &gate, matches!(doing, GateAction::Hold(_))).await?;
    let changed = gates::act(&app, lane, doing, &act.visit.who.name, note).await?;
    app.wake();
    Ok(act.visit.frame.go("/methods#gates", said, &changed.name))
}

#[cfg(test)]
mod tests {
    use super::super::words::Lang;
    use super::*;

    #[test]
    fn times_are_found_by_method_whatever_it_is_called() {
        let metrics = "# TYPE redrive_attempt_seconds summary\n\
            redrive_attempt_seconds{method=\"a\\\"b\",quantile=\"0.5\"} 0.020\n\
            redrive_attempt_seconds{method=\"a\\\"b\",quantile=\"0.95\"} 1.5\n\
            redrive_attempt_seconds{method=\"a\\\"b\",quantile=\"0.99\"} 61\n\
            redrive_attempt_seconds{method=\"idle\",quantile=\"0.5\"} 0\n";
        let times = times(metrics);
        let w = Lang::En.words();
        assert_eq!(times.of("a\"b", w).as_deref(), Some("20 ms · 1 s · 1 min 1 s"));
        assert_eq!((times.of("idle", w), times.of("b", w)), (None, None));
    }

    #[test]
    fn what_holds_work_back_comes_before_what_waits_for_people() {
        let mut all = [Worst::Nothing, Worst::Dead, Worst::Late, Worst::Paused, Worst::Unhandled, Worst::Gate];
        all.sort();
        assert_eq!(all, [Worst::Gate, Worst::Unhandled, Worst::Paused, Worst::Late, Worst::Dead, Worst::Nothing]);
        let limits = serde_json::json!({ "gate": {}, "concurrency": 3, "allow_private": false, "rate": { "per": "1s", "tasks": 200 } });
        assert_eq!(said(&limits), [("concurrency".into(), "3".into()), ("rate".into(), "200 / 1s".into())]);
    }
}
