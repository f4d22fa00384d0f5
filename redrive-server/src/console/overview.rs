//! Everything at one look, what is worst first.

use std::sync::Arc;
use std::time::Duration;

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use redrive::gate::GateState;
use redrive::saga::SagaState;
use redrive::store::{ChannelState, Count, Exactness, MethodCount, Moment, Overview};
use redrive::{Clock, Engine, Store, Timestamp};

use crate::server::guards::Guarded;
use crate::server::problem::Answer;
use crate::server::{App, gates};

use super::address::Address;
use super::chart::{Curve, curves};
use super::fields::Fields;
use super::html::{self, Html};
use super::needs::{Need, Seen, needs};
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
    address: String,
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

pub(super) async fn show(State(app): State<App>, visit: Visit, Address(address): Address) -> Answer<Response> {
    let (f, now) = (visit.frame, app.clock.now());
    let store = &app.store;
    let counts = counts(&app).await?;
    let (gates, nodes, paused) = tokio::try_join!(gates::all(&app), store.nodes(), store.paused())?;
    let (minutes, tens) = tokio::try_join!(store.history(now - HOUR, 1), store.history(now - DAY, 10))?;
    let groups = super::dead::groups(&app).await?;
    let exactness = if groups.all { Exactness::Exact } else { Exactness::AtLeast };
    let unowned = Count { n: groups.groups.iter().map(|group| group.unowned).sum(), exactness };
    let troubles = app.engine.as_ref().map(Engine::troubles).unwrap_or_default();
    let (stuck, guards, channels) = Box::pin(beside(&app)).await?;
    let seen = Seen { counts, gates, nodes, paused, troubles, unowned, stuck, guards, channels };
    let page = Page {
        needs: needs(&seen, &f, now),
        figures: figures(&seen, &minutes, f.w, now),
        hour: rates(&minutes, now - HOUR, 1, f.w.chart_hour),
        day: rates(&tens, now - DAY, 10, f.w.chart_day),
        backlog: backlog(&tens, now - DAY, f.w.chart_backlog),
        is_new: seen.counts.overview.methods.is_empty() && seen.counts.overview.archived.n == 0 && minutes.is_empty(),
        methods: seen.counts.overview.methods.iter().map(row).collect(),
        address,
        f: f.clone(),
    };
    Ok(f.show(&page))
}

/// What else may need somebody: sagas that are stuck, rows of guarded tables, channels.
async fn beside(app: &App) -> redrive::Result<(u64, Vec<Arc<Guarded>>, Vec<ChannelState>)> {
    let (guards, sagas, mut channels) =
        tokio::try_join!(super::guards::all(app), app.store.count_sagas(), app.store.channel_states())?;
    let stuck = sagas.into_iter().find(|(state, _)| *state == SagaState::Stuck).map_or(0, |(_, n)| n);
    let settings = app.settings();
    let is_used = |name: &str| settings.notify.iter().any(|notify| notify.channels.contains_key(name));
    channels.retain(|channel| is_used(&channel.name));
    Ok((stuck, guards, channels))
}

pub(super) const HOUR: Duration = Duration::from_secs(3600);
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
        plain(w.waiting, html::count(o.pending), running(o, w), "/tasks"),
        warn(
            o.dead.n > 0,
            "bad",
            plain(w.dead, html::count(o.dead), fill(w.unowned_n, &[&html::count(seen.unowned)]), "/dead"),
        ),
        warn(open > 0, "bad", plain(w.gates_open, open.to_string(), String::new(), "/gates")),
        warn(alive == 0, "bad", plain(w.nodes_alive, alive.to_string(), String::new(), "/nodes")),
    ]
}

/// The number of attempts that run, and since when the oldest of them does.
fn running(o: &Overview, w: &Words) -> String {
    let running = fill(w.running_n, &[&html::count(o.running)]);
    match o.oldest_running {
        Some(since) => format!("{running}, {} {}", w.oldest, html::ago(since)),
        None => running,
    }
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
    // Nodes tell of a minute a little after it is over: until then nothing is drawn of it, rather than a fall to nothing.
    let known = steps.len() - steps.iter().rev().take(2).take_while(|step| step.is_none()).count();
    let curve = |class, of: fn(&Moment) -> u64| Curve {
        class,
        points: steps
            .iter()
            .enumerate()
            .map(|(i, step)| match step {
                None if i >= known => f64::NAN,
                step => step.as_ref().map_or(0, of) as f64 / f64::from(minutes),
            })
            .collect(),
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
