//! One saga: its steps as a drawing and as a table, what has happened to it, and what a person can do about it.

use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use redrive::saga::{Event, Op, SagaState, StepKind, Why, Work};
use redrive::store::{Journaled, SagaRecord};
use redrive::{Business, Timestamp};
use serde_json::Value;

use crate::server::App;
use crate::server::input::Names;
use crate::server::problem::{Answer, Problem};
use crate::server::sagas::{self, Action, StepShown};

use super::fields::{Fields, segment};
use super::graph;
use super::html::{self, Html};
use super::sagas::state_tag;
use super::tasks::{of_business, tag};
use super::visit::{Act, Frame, Said, Visit};
use super::words::{Words, fill};

/// The newest events that are shown.
const MOST_EVENTS: usize = 300;

#[derive(Template)]
#[template(path = "saga.html")]
struct Page {
    f: Frame,
    id: String,
    name: String,
    /// Where its buttons send to.
    act: String,
    state: Html,
    is_stuck: bool,
    is_over: bool,
    goes_back: bool,
    /// Whether it is not known of a step whether it was undone.
    is_in_doubt: bool,
    facts: Vec<(&'static str, Html)>,
    graph: Html,
    steps: Vec<Row>,
    events: Vec<Item>,
    /// Events that are not shown.
    earlier: usize,
    /// Operators and admins see it.
    input: Option<String>,
    signals: Vec<String>,
    /// What was typed and is not taken.
    typed: Typed,
    tasks: String,
    dead: String,
}

struct Row {
    n: usize,
    name: String,
    kind: &'static str,
    pivot: bool,
    after: String,
    state: Html,
    round: u32,
    changed: Option<Html>,
    error: String,
    /// Attempts at it that have failed, if it is under way.
    failed: u32,
    next: Option<Html>,
    output: Option<String>,
    /// Whether it is under way or has failed: then a person may leave it out, or say that it is done.
    is_open: bool,
}

/// What was typed into one of its forms and is not taken.
#[derive(Default)]
struct Typed {
    field: &'static str,
    /// The step or the signal that it is about.
    about: String,
    text: String,
    note: String,
    wrong: String,
}

impl Typed {
    /// What can be typed wrong with this action.
    fn of(action: &str, fields: &Fields, problem: &Problem) -> Option<Self> {
        let (field, about) = match action {
            "input" => ("input", ""),
            "resolve" => ("output", "step"),
            "signal" => ("payload", "signal"),
            _ => return None,
        };
        let text = |name: &str| fields.text(name).to_owned();
        Some(Self { field, about: text(about), text: text(field), note: text("note"), wrong: problem.detail.clone() })
    }

    /// If it is this field's.
    fn at(&self, field: &str) -> Option<&Self> {
        (self.field == field).then_some(self)
    }

    /// If it is this field's, of this step.
    fn of_step(&self, step: &str) -> Option<&Self> {
        self.at("output").filter(|typed| typed.about == step)
    }
}

/// Something that happened to it.
struct Item {
    class: &'static str,
    at: Html,
    what: String,
    detail: String,
}

pub(super) async fn show(State(app): State<App>, visit: Visit, Names([id]): Names<1>) -> Answer<Response> {
    let record = find(&app, &id).await?;
    let page = page(&app, &visit, record).await?;
    Ok(page.f.show(&page))
}

async fn find(app: &App, id: &str) -> Answer<SagaRecord> {
    app.store.saga(id).await?.ok_or_else(|| Problem::not_found("saga", id))
}

async fn page(app: &App, visit: &Visit, record: SagaRecord) -> Answer<Page> {
    let (f, sees) = (visit.frame.clone(), visit.frame.is_operator());
    let w = f.w;
    let earlier = record.journal.len().saturating_sub(MOST_EVENTS);
    let events = record.journal.iter().skip(earlier).map(|event| item(event, sees, w)).collect();
    let goes_back = goes_back(record.journal.iter().map(|journaled| &journaled.event));
    let is_in_doubt = record.steps().iter().any(|step| step.undo == "unknown");
    let kinds: Vec<StepKind> = record.definition.steps.iter().map(|step| step.kind.clone()).collect();
    let mut shown = sagas::shown(record, &visit.who)?;
    sagas::add_attempts(app, &mut shown).await?;
    let (summary, deadline) = (shown.summary, shown.deadline);
    let is_over = summary.state.is_final();
    let business = Business { kind: "saga".into(), id: summary.id.clone() };
    Ok(Page {
        act: format!("/sagas/{}", segment(&summary.id)),
        state: state_tag(summary.state, w),
        is_stuck: summary.state == SagaState::Stuck,
        is_over,
        goes_back,
        is_in_doubt,
        facts: facts(&summary, deadline, w),
        graph: drawn(&shown.steps, w),
        steps: shown.steps.iter().enumerate().map(|(n, step)| row(n, step, is_over, sees, w)).collect(),
        events,
        earlier,
        input: sees.then(|| pretty(&shown.input)),
        typed: Typed::default(),
        signals: kinds.iter().filter_map(signal).collect(),
        tasks: of_business("/tasks", &business),
        dead: of_business("/dead", &business),
        id: summary.id,
        name: summary.name,
        f,
    })
}

fn signal(kind: &StepKind) -> Option<String> {
    match kind {
        StepKind::WaitFor { signal, .. } => Some(signal.clone()),
        _ => None,
    }
}

/// Whether it was told to go back, and not forward again since.
fn goes_back<'e>(events: impl DoubleEndedIterator<Item = &'e Event>) -> bool {
    let turns = |event: &Event| match event {
        Event::Rollback { .. } => Some(true),
        Event::Forward { .. } | Event::Round => Some(false),
        _ => None,
    };
    events.rev().find_map(turns).unwrap_or(false)
}

fn facts(saga: &redrive::store::SagaSummary, deadline: Option<Timestamp>, w: &Words) -> Vec<(&'static str, Html)> {
    let mut all = vec![
        (w.id, Html(format!("<span class=\"mono\">{}</span>", html::escape(&saga.id)))),
        (w.started, html::at_and_ago(saga.created_at)),
        (w.since, html::at_and_ago(saga.since)),
    ];
    let goes_on = saga.look_at.filter(|at| !saga.state.is_final() && Some(*at) != deadline);
    all.extend(goes_on.map(|at| (w.goes_on, html::at_and_ago(at))));
    all.extend(deadline.map(|at| (w.deadline, html::at_and_ago(at))));
    all
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

fn drawn(steps: &[StepShown], w: &Words) -> Html {
    let of = |step: &StepShown| w.step_state(step.state, step.kind);
    let boxes = steps.iter().map(|step| graph::Step {
        name: &step.name,
        after: &step.after,
        state: step.state,
        word: of(step),
        waits: matches!(step.kind, "sleep" | "wait_for"),
        pivot: step.pivot,
    });
    let boxes: Vec<graph::Step<'_>> = boxes.collect();
    graph::drawn(&boxes, w.steps_drawn)
}

fn row(n: usize, step: &StepShown, is_over: bool, sees: bool, w: &Words) -> Row {
    let class = match step.state {
        "done" | "confirmed" => "good",
        "refused" | "unknown" | "undo_failed" => "bad",
        "undoing" | "undone" | "skipped" => "warn",
        _ => "",
    };
    let is_open =
        matches!(step.state, "running" | "refused" | "unknown" | "confirming" | "undoing" | "undo_failed") && !is_over;
    Row {
        n,
        name: step.name.clone(),
        kind: w.step_kind(step.kind),
        pivot: step.pivot,
        after: step.after.join(", "),
        state: tag(class, w.step_state(step.state, step.kind)),
        round: step.round,
        changed: step.changed_at.map(html::ago),
        error: step.error.clone().unwrap_or_default(),
        failed: step.attempts.unwrap_or_default(),
        next: step.next_at.map(html::ago),
        output: (sees && !step.output.is_null()).then(|| pretty(&step.output)),
        is_open,
    }
}

/// An event in words.
fn item(journaled: &Journaled, sees: bool, w: &Words) -> Item {
    let of = |work: &Work| work.place();
    let by_op = |work: &Work, words: [&'static str; 3]| {
        let [run, undo, confirm] = words;
        let word = match work.op {
            Op::Run => run,
            Op::Undo => undo,
            Op::Confirm => confirm,
        };
        fill(word, &[&of(work)])
    };
    let seen = |value: &Value| if sees && !value.is_null() { value.to_string() } else { String::new() };
    let by = |who: &Option<String>| who.as_ref().map(|who| fill(w.by, &[who])).unwrap_or_default();
    let both = |a: String, b: String| [a, b].into_iter().filter(|s| !s.is_empty()).collect::<Vec<_>>().join(" · ");
    let (class, what, detail) = match &journaled.event {
        Event::Began => ("", w.saga_began.to_owned(), String::new()),
        Event::Started { work, .. } => ("now", by_op(work, [w.step_runs, w.undo_runs, w.confirm_runs]), String::new()),
        // What came of it is beside the step.
        Event::Done { work, by: who, .. } => {
            let class = if work.op == Op::Undo { "warn" } else { "good" };
            (class, by_op(work, [w.step_is_done, w.undo_is_done, w.confirm_is_done]), by(who))
        }
        Event::Failed { work, refused, error } => {
            let known = if *refused { w.failed_refused } else { w.failed_unknown };
            ("bad", by_op(work, [w.step_failed, w.undo_failed, w.confirm_failed]), format!("{error} ({known})"))
        }
        Event::Skipped { work, by } => ("warn", fill(w.step_left_out, &[&of(work)]), fill(w.by, &[by])),
        Event::Lost { work } => ("bad", fill(w.work_lost, &[&of(work)]), w.failed_unknown.to_owned()),
        Event::TimeUp { work } => ("warn", fill(w.step_time_up, &[&of(work)]), String::new()),
        Event::Signal { name, payload, by: who, .. } => ("", fill(w.saga_told, &[name]), both(by(who), seen(payload))),
        Event::Rollback { why, to } => {
            let what = to.as_ref().map_or_else(|| w.saga_back.to_owned(), |to| fill(w.saga_back_to, &[to]));
            ("warn", what, why_back(why, w))
        }
        Event::Round => ("", w.saga_round.to_owned(), String::new()),
        Event::Decided => ("good", w.saga_decided.to_owned(), String::new()),
        Event::Forward { by } => ("", w.saga_forward.to_owned(), fill(w.by, &[by])),
        Event::Input { input, by } => ("", w.saga_input.to_owned(), both(fill(w.by, &[by]), seen(input))),
        Event::Ended { state, by: who } => {
            let class = if *state == SagaState::Succeeded { "good" } else { "warn" };
            (class, fill(w.saga_ended, &[&w.saga_state(*state)]), by(who))
        }
        other => ("", serde_json::to_string(other).unwrap_or_default(), String::new()),
    };
    Item { class, at: html::at_and_ago(journaled.at), what, detail }
}

fn why_back(why: &Why, w: &Words) -> String {
    match why {
        Why::Failed { step, error } => fill(w.back_failed, &[step, error]),
        Why::TimeUp { step } => fill(w.back_time_up, &[step]),
        Why::Deadline => w.back_deadline.to_owned(),
        Why::Asked { by, note } => {
            let note = note.as_ref().map(|note| format!(" · {note}")).unwrap_or_default();
            format!("{}{note}", fill(w.by, &[by]))
        }
        other => serde_json::to_string(other).unwrap_or_default(),
    }
}

/// What cannot be taken back is asked for on a page of its own.
#[derive(Template)]
#[template(path = "saga_kill.html")]
struct Kill {
    f: Frame,
    id: String,
    name: String,
    act: String,
    state: Html,
    /// What would stay as it is.
    stays: Vec<String>,
}

pub(super) async fn ask_kill(State(app): State<App>, visit: Visit, Names([id]): Names<1>) -> Answer<Response> {
    visit.needs(&app, redrive::store::Role::Operator).await?;
    let shown = sagas::shown(find(&app, &id).await?, &visit.who)?;
    let f = visit.frame;
    let waits = |step: &StepShown| matches!(step.kind, "sleep" | "wait_for");
    let happened =
        |step: &&StepShown| !waits(step) && !matches!(step.state, "pending" | "undone" | "skipped" | "refused");
    let page = Kill {
        stays: shown.steps.iter().filter(happened).map(|step| step.name.clone()).collect(),
        act: format!("/sagas/{}", segment(&id)),
        state: state_tag(shown.summary.state, f.w),
        name: shown.summary.name,
        id,
        f: f.clone(),
    };
    Ok(f.show(&page))
}

pub(super) async fn kill(state: State<App>, Names([id]): Names<1>, act: Act) -> Answer<Response> {
    self::act(state, Names([id, "kill".into()]), act).await
}

/// What is typed and not taken is shown as it was typed, with the reason.
pub(super) async fn act(State(app): State<App>, Names([id, action]): Names<2>, act: Act) -> Answer<Response> {
    let problem = match done(&app, &id, &action, &act).await {
        Err(problem) if super::is_typed_wrong(&problem) => problem,
        other => return other,
    };
    let Some(typed) = Typed::of(&action, &act.fields, &problem) else { return Err(problem) };
    let mut visit = act.visit;
    visit.frame.here = format!("/sagas/{}", segment(&id));
    let page = Page { typed, ..page(&app, &visit, find(&app, &id).await?).await? };
    Ok(super::answered(Some(&problem), page.f.show(&page)))
}

async fn done(app: &App, id: &str, action: &str, act: &Act) -> Answer<Response> {
    let (fields, who) = (&act.fields, &act.visit.who.name);
    let json = |name: &str| read(name, fields.text(name));
    let (to, frame) = (format!("/sagas/{}", segment(id)), &act.visit.frame);
    if action == "signal" {
        let payload = json("payload")?;
        app.engine()?.sagas().signal(id, fields.text("signal"), &payload, Some(who)).await?;
        return Ok(frame.go(&to, Said::SagaTold, id));
    }
    let (action, said) = match action {
        "retry" => (Action::Retry, Said::SagaRetried),
        "skip" => (Action::Skip, Said::SagaSkipped),
        "resolve" => (Action::Resolve, Said::SagaResolved),
        "input" => (Action::EditInput, Said::SagaInput),
        "forward" => (Action::Forward, Said::SagaForward),
        "cancel" => (Action::Cancel, Said::SagaCancelled),
        "kill" if fields.is("sure", "yes") => (Action::Kill, Said::SagaKilled),
        "kill" => return Err(Problem::new(StatusCode::BAD_REQUEST, "not_understood", frame.w.kill_sure)),
        other => return Err(Problem::not_found("action", other)),
    };
    let doing = sagas::Act {
        action,
        step: fields.get("step").map(str::to_owned),
        output: if action == Action::Resolve { json("output")? } else { Value::Null },
        input: if action == Action::EditInput { Some(json("input")?) } else { None },
        undone: fields.get("undone").map(|said| said == "yes"),
        note: fields.get("note").map(str::to_owned),
    };
    doing.on(app.engine()?, id, who).await?;
    app.wake();
    Ok(frame.go(&to, said, id))
}

/// What a person typed as JSON; nothing is null.
fn read(name: &str, typed: &str) -> Answer<Value> {
    let wrong = |e| Problem::new(StatusCode::BAD_REQUEST, "not_understood", format!("{name}: this is not JSON: {e}"));
    if typed.is_empty() { Ok(Value::Null) } else { serde_json::from_str(typed).map_err(wrong) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_back_until_it_goes_forward_again() {
        let back = || Event::Rollback { why: Why::Deadline, to: None };
        let forward = || Event::Forward { by: "a".into() };
        assert!(goes_back([back()].iter()) && !goes_back([].iter()));
        assert!(!goes_back([back(), forward()].iter()) && goes_back([back(), forward(), back()].iter()));
    }

    #[test]
    fn what_is_typed_is_json_or_nothing() {
        assert_eq!(read("output", "").unwrap(), Value::Null);
        assert_eq!(read("output", "{\"a\": 1}").unwrap()["a"], 1);
        assert!(read("output", "{a}").unwrap_err().detail.starts_with("output:"));
    }
}
