//! Everything at one look, what is worst first.

use std::sync::Arc;
use std::time::Duration;

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use redrive::gate::{Gate, GateState};
use redrive::store::{Count, Exactness, MethodCount, Moment, Node, Overview, Paused};
use redrive::{Clock, Engine, Store, Timestamp};

use crate::server::App;
use crate::server::problem::Answer;

use super::chart::{Curve, curves};
use super::fields::Fields;
use super::html::{self, Html};
use super::visit::{Frame, Visit};
use super::words::{Words, fill};

/// A due task that has waited for so long is worth a look.
pub(super) const LATE: Duration = Duration::from_secs(60);
/// Rates are of so many minutes.
const RATE_OVER: Duration = Duration::from_secs(300);

#[derive(Template)]
#[template(path = "overview.html")]
struct Page {
    f: Frame,
    needs: Vec<Need>,
    figures: Vec<Figure>,
    hour: Html,
    day: Html,
    backlog: Html,
    methods: Vec<Row>,
    /// Nothing was ever enqueued here: how that is done.
    is_new: bool,
}

/// Something that needs somebody.
struct Need {
    class: &'static str,
    what: String,
    why: String,
    when: Option<Html>,
    link: String,
    do_it: &'static str,
}

struct Figure {
    class: &'static str,
    label: &'static str,
    value: String,
    more: Html,
    link: &'static str,
}

struct Row {
    method: String,
    tasks: String,
    dead: String,
    oldest: Option<Html>,
    link: String,
    dead_link: String,
}

/// What is counted.
pub(super) struct Counts {
    pub(super) overview: Overview,
    due: Count,
}

impl Counts {
    async fn find(store: Store, clock: Clock) -> redrive::Result<Self> {
        let (overview, due) = tokio::try_join!(store.overview(), store.count_due(clock.now()))?;
        Ok(Self { overview, due })
    }
}

/// As they are, or were a moment ago.
pub(super) async fn counts(app: &App) -> redrive::Result<Arc<Counts>> {
    app.memory.counts.get(&app.clock, Box::pin(Counts::find(app.store.clone(), app.clock.clone()))).await
}

/// What the page is made of.
struct Seen {
    counts: Arc<Counts>,
    gates: Vec<Gate>,
    nodes: Vec<Node>,
    paused: Vec<Paused>,
    troubles: Vec<&'static str>,
    unowned: Count,
}

pub(super) async fn show(State(app): State<App>, visit: Visit) -> Answer<Response> {
    let (f, now) = (visit.frame, app.clock.now());
    let store = &app.store;
    let counts = counts(&app).await?;
    let (gates, nodes, paused) = tokio::try_join!(store.gates(), store.nodes(), store.paused())?;
    let (minutes, tens) = tokio::try_join!(store.history(now - HOUR, 1), store.history(now - DAY, 10))?;
    let groups = super::dead::groups(&app).await?;
    let exactness = if groups.all { Exactness::Exact } else { Exactness::AtLeast };
    let unowned = Count { n: groups.groups.iter().map(|group| group.unowned).sum(), exactness };
    let troubles = app.engine.as_ref().map(Engine::troubles).unwrap_or_default();
    let seen = Seen { counts, gates, nodes, paused, troubles, unowned };
    let page = Page {
        needs: needs(&seen, f.w, now),
        figures: figures(&seen, &minutes, f.w, now),
        hour: rates(&minutes, now - HOUR, 1, f.w.chart_hour),
        day: rates(&tens, now - DAY, 10, f.w.chart_day),
        backlog: backlog(&tens, now - DAY, f.w.chart_backlog),
        is_new: seen.counts.overview.methods.is_empty() && seen.counts.overview.archived.n == 0 && minutes.is_empty(),
        methods: seen.counts.overview.methods.iter().map(row).collect(),
        f: f.clone(),
    };
    Ok(f.show(&page))
}

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

pub(super) fn of_method(path: &str, method: &str) -> String {
    format!("{path}{}", Fields::default().with("method", Some(method)).query())
}

fn row(count: &MethodCount) -> Row {
    Row {
        method: count.method.clone(),
        tasks: html::count(count.tasks),
        dead: html::count(count.dead),
        oldest: count.oldest_due.map(html::ago),
        link: of_method("/tasks", &count.method),
        dead_link: of_method("/dead", &count.method),
    }
}

/// What needs somebody, worst first.
fn needs(seen: &Seen, w: &Words, now: Timestamp) -> Vec<Need> {
    let mut all: Vec<Need> = seen.troubles.iter().map(|trouble| trouble_of(trouble, w)).collect();
    all.extend(seen.gates.iter().filter(|gate| gate.effective() != GateState::Closed).map(|gate| open_gate(gate, w)));
    if seen.unowned.n > 0 {
        let what = fill(w.need_dead, &[&html::count(seen.unowned)]);
        let reasons = seen.counts.overview.dead_by_reason.iter();
        let why = reasons.map(|(reason, n)| format!("{} {}", w.reason(*reason), html::count(*n))).collect::<Vec<_>>();
        let (why, link) = (why.join(" · "), "/dead?owned=no".into());
        all.push(Need { class: "bad", what, why, when: None, link, do_it: w.need_dead_do });
    }
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
            (true, Some(_)) => all.push(need(w.need_late, w.need_late_why)),
            (true, None) => {}
        }
    }
    all.extend(seen.paused.iter().map(|paused| paused_method(paused, w)));
    let died = seen.nodes.iter().filter(|node| node.dead && !node.leaving && now.since(node.beat_at) < HOUR);
    all.extend(died.map(|node| dead_node(node, w)));
    all
}

fn trouble_of(trouble: &str, w: &Words) -> Need {
    let what = w.need_trouble.to_owned();
    Need { class: "bad", what, why: trouble.to_owned(), when: None, link: "/readyz".into(), do_it: w.need_trouble_do }
}

fn open_gate(gate: &Gate, w: &Words) -> Need {
    let what = match (gate.held.is_some(), gate.effective()) {
        (true, _) => w.need_gate_held,
        (false, GateState::HalfOpen) => w.need_gate_half,
        (false, _) => w.need_gate,
    };
    Need {
        class: "bad",
        what: fill(what, &[&gate.name]),
        why: gate.why.clone().unwrap_or_default(),
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

fn figures(seen: &Seen, minutes: &[Moment], w: &Words, now: Timestamp) -> Vec<Figure> {
    let oldest = seen.counts.overview.methods.iter().filter_map(|m| m.oldest_due).min().filter(|due| *due <= now);
    let is_late = oldest.is_some_and(|due| now.since(due) >= LATE);
    let open = seen.gates.iter().filter(|gate| gate.effective() != GateState::Closed).count();
    let alive = seen.nodes.iter().filter(|node| !node.dead && !node.leaving).count();
    let plain = |label, value: String, more: String, link| Figure { class: "", label, value, more: Html(more), link };
    let per_minute = |of: fn(&Moment) -> u64| rate(minutes, of, now);
    let warn = |is_bad, class, figure: Figure| if is_bad { Figure { class, ..figure } } else { figure };
    let o = &seen.counts.overview;
    let more = oldest.map(|due| format!("{} {}", w.oldest, html::ago(due))).unwrap_or_default();
    vec![
        plain(w.rate_in, per_minute(|m| m.enqueued), w.per_minute.into(), "/tasks"),
        plain(w.rate_done, per_minute(|m| m.done), w.per_minute.into(), "/tasks"),
        plain(w.rate_failed, per_minute(|m| m.failed), w.per_minute.into(), "/tasks"),
        warn(is_late, "warn", plain(w.due_now, html::count(seen.counts.due), more, "/tasks?due=now")),
        plain(w.waiting, html::count(o.pending), fill(w.running_n, &[&html::count(o.running)]), "/tasks"),
        warn(
            o.dead.n > 0,
            "bad",
            plain(w.dead, html::count(o.dead), fill(w.unowned_n, &[&html::count(seen.unowned)]), "/dead"),
        ),
        warn(open > 0, "bad", plain(w.gates_open, open.to_string(), String::new(), "/gates")),
        warn(alive == 0, "bad", plain(w.nodes_alive, alive.to_string(), String::new(), "/nodes")),
    ]
}

/// How many in a minute, over the last few.
fn rate(minutes: &[Moment], of: fn(&Moment) -> u64, now: Timestamp) -> String {
    let since = now - RATE_OVER;
    let sum: u64 = minutes.iter().filter(|m| m.at >= since).map(of).sum();
    let per_minute = sum as f64 / (RATE_OVER.as_secs_f64() / 60.0);
    match per_minute {
        n if n == 0.0 || n >= 10.0 => html::number(n.round() as u64),
        n => format!("{n:.1}"),
    }
}

/// The steps of a curve, from the first to the last whole one, with what happened in each.
fn steps(moments: &[Moment], from: Timestamp, minutes: u32) -> Vec<Option<Moment>> {
    let step = i64::from(minutes) * 60_000;
    let first = from.as_millis() - from.as_millis() % step;
    let n = (if minutes == 1 { HOUR } else { DAY }).as_secs() / 60 / u64::from(minutes);
    let find = |i: u64| {
        let at = Timestamp::from_millis(first + i.cast_signed() * step);
        moments.iter().find(|moment| moment.at == at).copied()
    };
    (0..n).map(find).collect()
}

fn rates(moments: &[Moment], from: Timestamp, minutes: u32, said: &str) -> Html {
    let steps = steps(moments, from, minutes);
    let curve = |class, of: fn(&Moment) -> u64| Curve {
        class,
        points: steps.iter().map(|step| step.as_ref().map_or(0, of) as f64 / f64::from(minutes)).collect(),
    };
    let all = [
        curve("in", |m| m.enqueued),
        curve("done", |m| m.done),
        curve("failed", |m| m.failed),
        curve("dead", |m| m.dead),
    ];
    curves(&all, from, from + if minutes == 1 { HOUR } else { DAY }, said)
}

/// What waited. Where nobody looked it was as before.
fn backlog(moments: &[Moment], from: Timestamp, said: &str) -> Html {
    let mut last = 0;
    let mut points = Vec::new();
    let with_the_last = from + Duration::from_secs(600); // how many wait is known before a step is over
    for step in steps(moments, with_the_last, 10) {
        last = step.map_or(0, |step| step.waiting.unwrap_or(last));
        points.push(last as f64);
    }
    curves(&[Curve { class: "in", points }], from, from + DAY, said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_the_last_minutes() {
        let now = Timestamp::from_millis(1_800_000_000_000);
        let moment = |ago: u64, done| {
            let mut moment = Moment::at(now - Duration::from_secs(ago));
            moment.done = done;
            moment
        };
        let minutes = [moment(600, 9_000), moment(120, 4), moment(60, 3)];
        assert_eq!(rate(&minutes, |m| m.done, now), "1.4");
        assert_eq!(rate(&minutes, |m| m.dead, now), "0");
        assert_eq!(steps(&minutes, now - HOUR, 1).iter().flatten().count(), 3);
    }
}
