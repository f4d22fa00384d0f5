//! One task, wherever it is by now: waiting, running, dead, or in the archive. Its life, its policy in words, the times to come,
//! and what can be done about it.

use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use redrive::gate::{Gate, GateState};
use redrive::store::{
    ArchiveFilter, Archived, AuditFilter, AuditOutcome, Audited, Cancelled, DeadTask, EndedAs, Redriven, TaskFilter,
};
use redrive::{Attempt, DeadReason, Kind, Policy, Status, StopRequest, Task, TaskId, Timestamp};

use crate::http::{HttpRequest, METHOD};
use crate::server::App;
use crate::server::input::{Names, acting};
use crate::server::problem::{Answer, Problem};

use super::chart;
use super::ended::way;
use super::html::{self, Html};
use super::policy;
use super::tasks::{attempts, of_business, state, tag};
use super::visit::{Act, Frame, Said, Visit};
use super::words::{Words, fill};

/// Records of the audit that are shown.
const MOST_AUDITS: u32 = 50;

#[derive(Template)]
#[template(path = "task.html")]
struct Page {
    f: Frame,
    id: TaskId,
    method: String,
    state: Html,
    last_error: Option<(String, String)>,
    facts: Vec<(&'static str, Html)>,
    life: Vec<Item>,
    policy: Vec<String>,
    /// As it is, or as it was typed.
    policy_json: String,
    /// Why what was typed is not taken.
    wrong: Option<String>,
    tries: Option<Html>,
    coming: Vec<Html>,
    /// Operators and admins see these.
    params: Option<String>,
    result: Option<String>,
    curl: Option<Result<String, &'static str>>,
    /// Which buttons there are: `live`, `dead` or none.
    place: &'static str,
    is_running: bool,
    owner: String,
}

/// Something in a task's life.
struct Item {
    class: &'static str,
    at: Option<Timestamp>,
    what: String,
    detail: String,
}

impl Item {
    fn new(class: &'static str, at: Timestamp, what: impl Into<String>) -> Self {
        Self { class, at: Some(at), what: what.into(), detail: String::new() }
    }

    fn with(self, detail: impl Into<String>) -> Self {
        Self { detail: detail.into(), ..self }
    }

    fn when(&self) -> Html {
        self.at.map(html::at_and_ago).unwrap_or_default()
    }
}

/// Where a task is.
enum Place {
    Live(Task),
    Dead(DeadTask),
    Ended(Archived),
}

impl Place {
    async fn find(app: &App, id: TaskId) -> Answer<Self> {
        if let Some(task) = app.store.get(id).await? {
            return Ok(Self::Live(task));
        }
        if let Some(letter) = app.store.get_dead(id).await? {
            return Ok(Self::Dead(letter));
        }
        let this = ArchiveFilter::from(TaskFilter { ids: Some(vec![id]), ..TaskFilter::default() });
        let found = app.store.search_archive(&this, 1).await?.items.pop();
        found.map(Self::Ended).ok_or_else(|| Problem::not_found("task", id))
    }

    fn task(&self) -> &Task {
        match self {
            Self::Live(task) => task,
            Self::Dead(letter) => &letter.task,
            Self::Ended(entry) => &entry.task,
        }
    }

    fn state(&self, now: Timestamp, w: &Words) -> Html {
        match self {
            Self::Live(task) => state(task, now, w),
            Self::Dead(letter) => tag("bad", &format!("{}: {}", w.state_dead, w.reason(letter.reason))),
            Self::Ended(entry) => way(entry.ended_as, w),
        }
    }
}

pub(super) async fn show(State(app): State<App>, visit: Visit, Names([id]): Names<1>) -> Answer<Response> {
    let page = found(&app, visit.frame, id.parse()?).await?;
    Ok(page.f.show(&page))
}

async fn found(app: &App, f: Frame, id: TaskId) -> Answer<Page> {
    let now = app.clock.now();
    let place = Place::find(app, id).await?;
    let of_this = AuditFilter { target: Some(id.to_string()), ..AuditFilter::default() };
    let audits = if f.is_operator() { app.store.audits(&of_this, MOST_AUDITS).await? } else { Vec::new() };
    let gate = crate::server::gates::all(app).await?.into_iter().find(|gate| gate.lane == place.task().lane);
    Ok(page(&f, &place, &audits, gate.as_ref(), now))
}

fn page(f: &Frame, place: &Place, audits: &[Audited], gate: Option<&Gate>, now: Timestamp) -> Page {
    let (task, w) = (place.task(), f.w);
    let is_live = matches!(place, Place::Live(_));
    let coming = if is_live { policy::coming(task, now) } else { Vec::new() };
    let past: Vec<Timestamp> = task.history.iter().map(|attempt| attempt.at).collect();
    let sees = f.is_operator();
    let result = if let Place::Ended(entry) = place { entry.result.as_deref() } else { None };
    Page {
        id: task.id,
        method: task.method.clone(),
        state: place.state(now, w),
        last_error: task.last_error.as_ref().map(|e| (e.kind.to_string(), e.message.clone())),
        facts: facts(place, gate, w),
        life: life(place, audits, now, w),
        policy: policy::in_words(&task.policy, w),
        wrong: None,
        policy_json: serde_json::to_string_pretty(&*task.policy).unwrap_or_default(),
        tries: is_live.then(|| chart::tries(&past, &coming, now, w.tries)),
        coming: coming.into_iter().map(html::at_and_ago).collect(),
        params: sees.then(|| pretty(&task.params)),
        result: result.filter(|_| sees).map(pretty),
        curl: sees.then(|| curl(task).ok_or(w.curl_hidden)),
        place: match place {
            Place::Live(_) => "live",
            Place::Dead(_) => "dead",
            Place::Ended(_) => "",
        },
        is_running: task.status == Status::Running,
        owner: if let Place::Dead(letter) = place { letter.owner.clone().unwrap_or_default() } else { String::new() },
        f: f.clone(),
    }
}

/// JSON as people read it; what is none (or encrypted) as it is.
fn pretty(json: &str) -> String {
    let read = serde_json::from_str::<serde_json::Value>(json).ok();
    read.and_then(|value| serde_json::to_string_pretty(&value).ok()).unwrap_or_else(|| json.to_owned())
}

fn text(text: impl std::fmt::Display) -> Html {
    Html(html::escape(&text.to_string()))
}

fn link(to: &str, shown: &str) -> Html {
    Html(format!("<a href=\"{}\">{}</a>", html::escape(to), html::escape(shown)))
}

fn facts(place: &Place, gate: Option<&Gate>, w: &Words) -> Vec<(&'static str, Html)> {
    let task = place.task();
    let mut all = vec![(w.id, Html(format!("<span class=\"mono\">{}</span>", task.id)))];
    all.extend(task.key.as_ref().map(|key| (w.key, text(key))));
    if let Some(business) = &task.business {
        let shown = format!("{} {}", business.kind, business.id);
        let (live, dead) = (link(&of_business("/tasks", business), &shown), of_business("/dead", business));
        all.push((w.business, Html(format!("{live} · {}", link(&dead, w.dead)))));
    }
    all.push((w.attempts, text(attempts(task))));
    all.extend((task.postponements > 0).then(|| (w.put_off, put_off(task, w))));
    if let Some(gate) = gate.filter(|gate| gate.effective() != GateState::Closed) {
        let why = gate.why.as_deref().unwrap_or_default();
        let since = html::ago(gate.failing_since.unwrap_or(gate.changed_at));
        let shown = format!("{} {since} {}<br>{}", tag("bad", w.gate_open), text(why), text(w.gate_waits));
        all.push((w.gate, Html(shown)));
    }
    all.extend((task.crashes > 0).then(|| (w.crashes, text(task.crashes))));
    all.extend((task.priority != 0).then(|| (w.priority, text(task.priority))));
    all.push((w.created, html::at_and_ago(task.created_at)));
    all.extend(task.created_by.as_ref().map(|by| (w.created_by, text(by))));
    all.extend(task.origin_id.map(|id| (w.origin, link(&format!("/tasks/{id}"), &id.to_string()))));
    all.extend(task.traceparent.as_ref().map(|trace| (w.trace, text(trace))));
    match place {
        Place::Live(_) => all.push((w.next_try, html::at_and_ago(task.due))),
        Place::Dead(letter) => all.extend(letter_facts(letter, w)),
        Place::Ended(entry) => {
            all.push((w.ended_at, html::at_and_ago(entry.ended_at)));
            let again = entry.redriven_as.map(|id| (w.redriven_as, link(&format!("/tasks/{id}"), &id.to_string())));
            all.extend(again);
        }
    }
    all
}

/// How often, and why as far as that is kept: a missing key and a wish for a slower pace are in the history, a handler's own wish is
/// only counted.
fn put_off(task: &Task, w: &Words) -> Html {
    let is_put_off = |past: &Attempt| past.kind == Kind::SEALED || !past.waited.is_zero();
    let why = match task.last_error.as_ref().filter(|error| error.kind == Kind::SEALED) {
        Some(_) => w.put_off_sealed.to_owned(),
        None if !task.waited().is_zero() => fill(w.put_off_slowed, &[&html::duration(task.waited(), w)]),
        None => w.put_off_asked.to_owned(),
    };
    let times = text(fill(w.put_off_n, &[&task.postponements, &why]));
    let is_waiting = task.status == Status::Pending && task.history.last().is_none_or(is_put_off);
    if is_waiting {
        Html(format!("{times}<br>{} {}", text(w.put_off_until), html::at_and_ago(task.due)))
    } else {
        times
    }
}

fn letter_facts(letter: &DeadTask, w: &Words) -> Vec<(&'static str, Html)> {
    let mut all = vec![(w.died, html::at_and_ago(letter.dead_at))];
    all.push((w.owner, letter.owner.as_ref().map_or_else(|| text(w.owned_no), text)));
    all.extend((letter.remind_count > 0).then(|| (w.reminded, text(fill(w.reminded_n, &[&letter.remind_count])))));
    all.extend(letter.next_remind_time.map(|at| (w.next_reminder, html::at_and_ago(at))));
    all.extend(letter.note.as_ref().map(|note| (w.note, text(note))));
    all
}

/// All that is known of its life, oldest first; what is to come last.
fn life(place: &Place, audits: &[Audited], now: Timestamp, w: &Words) -> Vec<Item> {
    let task = place.task();
    let by = task.created_by.as_ref().map(|by| fill(w.by, &[by])).unwrap_or_default();
    let mut all = vec![Item::new("", task.created_at, w.life_created).with(by)];
    if let (Some(first), Some(at)) = (task.history.first().filter(|first| first.n > 1), task.first_failed_at) {
        all.push(Item::new("bad", at, fill(w.life_earlier, &[&(first.n - 1)])));
    }
    for attempt in &task.history {
        let node = attempt.node.map(|node| format!(" · {}", fill(w.on_node, &[&node]))).unwrap_or_default();
        let detail = format!("{}: {}{node}", attempt.kind, attempt.message);
        let (class, what) = match &attempt.kind {
            _ if !attempt.waited.is_zero() => {
                ("warn", fill(w.life_slowed, &[&attempt.times, &html::duration(attempt.waited, w)]))
            }
            kind if *kind == Kind::SEALED => ("warn", w.life_put_off.to_owned()),
            kind if *kind == Kind::CRASH => ("bad", w.life_crashed.to_owned()),
            _ => ("bad", fill(w.life_failed, &[&attempt.n])),
        };
        all.push(Item::new(class, attempt.at, what).with(detail));
    }
    all.extend(task.notified_at.map(|at| Item::new("warn", at, w.life_notified)));
    all.extend(audits.iter().map(|record| audited(record, w)));
    match place {
        Place::Live(task) => all.push(live_item(task, now, w)),
        Place::Dead(letter) => {
            all.push(Item::new("bad", letter.dead_at, fill(w.life_dead, &[&w.reason(letter.reason)])));
            all.extend(letter.next_remind_time.map(|at| Item::new("next", at, w.next_reminder)));
        }
        Place::Ended(entry) => all.push(ended(entry, w)),
    }
    all.sort_by_key(|item| (item.at.is_some_and(|at| at > now), item.at));
    all
}

fn live_item(task: &Task, now: Timestamp, w: &Words) -> Item {
    let node = task.locked_by.map(|node| fill(w.on_node, &[&node])).unwrap_or_default();
    match (task.status, task.locked_at) {
        (Status::Running, Some(at)) => {
            let stop = if task.stop == StopRequest::None { node } else { format!("{node} · {}", w.life_stopping) };
            Item::new("now", at, fill(w.life_running, &[&(task.attempts + 1)])).with(stop)
        }
        _ if task.due <= now => Item::new("now", task.due, fill(w.life_due, &[&(task.attempts + 1)])),
        _ => Item::new("next", task.due, fill(w.life_next, &[&(task.attempts + 1)])),
    }
}

fn ended(entry: &Archived, w: &Words) -> Item {
    let by = entry.ended_by.as_ref().map(|by| fill(w.by, &[by])).unwrap_or_default();
    let why = entry.dead_reason.map(|reason: DeadReason| w.reason(reason));
    let detail = [why.unwrap_or_default(), &by, entry.note.as_deref().unwrap_or_default()];
    let detail = detail.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" · ");
    let class = if entry.ended_as == EndedAs::Done { "good" } else { "now" };
    Item::new(class, entry.ended_at, w.ended(entry.ended_as)).with(detail)
}

fn audited(record: &Audited, w: &Words) -> Item {
    let entry = &record.entry;
    let what = fill(w.life_person, &[&entry.who, &entry.action]);
    let refused = match &entry.outcome {
        AuditOutcome::Done => None,
        AuditOutcome::Refused(why) => Some(fill(w.refused, &[why])),
    };
    let detail = [refused, entry.note.clone()].into_iter().flatten().collect::<Vec<_>>().join(" · ");
    Item::new("", record.at, what).with(detail)
}

/// What would do the same again: the request itself, or the call that enqueues it. Nothing if its params cannot be read here.
fn curl(task: &Task) -> Option<String> {
    let is_http = task.method == METHOD || task.method.starts_with(&format!("{METHOD}."));
    let params: serde_json::Value = serde_json::from_str(&task.params).ok().filter(|_| !task.is_encrypted())?;
    let request = serde_json::from_str::<HttpRequest>(&task.params).ok().filter(|_| is_http);
    if let Some(request) = request.filter(|request| request.target.is_none()) {
        return Some(sent(&request));
    }
    let mut body = match is_http {
        true => serde_json::json!({ "http": params }),
        false => serde_json::json!({ "method": task.method, "params": params }),
    };
    if let (Some(key), Some(fields)) = (&task.key, body.as_object_mut()) {
        fields.insert("key".into(), key.clone().into());
    }
    Some(format!(
        "curl -X POST \"$REDRIVE_URL/api/v1/tasks\" \\\n  -H \"authorization: Bearer $REDRIVE_TOKEN\" -H 'content-type: application/json' \\\n  --data-raw {}",
        quoted(&body.to_string())
    ))
}

/// As we send it, but for what is added each time (an id, a time, a signature).
fn sent(request: &HttpRequest) -> String {
    let method = request.method.to_ascii_uppercase();
    let how = if method == "HEAD" { "--head".into() } else { format!("-X {}", quoted(&method)) };
    // `name;` is how curl writes a header without a value; `name:` would take it away.
    let header = |(name, value): (&String, &String)| match value.as_str() {
        "" => format!("{name};"),
        value => format!("{name}: {value}"),
    };
    let mut headers: Vec<String> = request.headers.iter().map(header).collect();
    let (before, body) = match (&request.body, &request.body_base64) {
        (Some(body), _) => (String::new(), Some(format!("--data-raw {}", quoted(body)))),
        (None, Some(body)) => {
            (format!("printf %s {} | base64 -d |\n", quoted(body)), Some("--data-binary @-".to_owned()))
        }
        (None, None) => (String::new(), None),
    };
    let has_type = request.headers.keys().any(|name| name.eq_ignore_ascii_case("content-type"));
    if body.is_some() && !has_type {
        headers.push("content-type:".into()); // else curl says that it is a form
    }
    let parts = headers.iter().map(|header| format!("-H {}", quoted(header))).chain(body);
    let parts: String = parts.map(|part| format!(" \\\n  {part}")).collect();
    // -g: braces and brackets of the address are meant as they are.
    format!("{before}curl -g {how} {}{parts}", quoted(&request.url))
}

/// One word for a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Does something to one task or letter.
pub(super) async fn act(State(app): State<App>, Names([id, action]): Names<2>, act: Act) -> Answer<Response> {
    let id: TaskId = id.parse()?;
    if action == "policy" {
        return edit_policy(&app, act, id).await;
    }
    let (now, acting) = (app.clock.now(), acting(&app, &act.visit.who, act.fields.text("note"))?);
    let (mut to, mut about) = (format!("/tasks/{id}"), id);
    let stopped = |how, said| if how == Cancelled::Ended { said } else { Said::StopRequested };
    let closed = |n, said| if n > 0 { Ok(said) } else { Err(Problem::not_found("dead letter", id)) };
    let said = match action.as_str() {
        "retry" => acting.retry_now(id, now).await.map(|()| Said::Retried)?,
        "cancel" => stopped(acting.cancel(id, now).await?, Said::Cancelled),
        "fail" => stopped(acting.fail(id, now).await?, Said::Failed),
        "redrive" => match acting.redrive(&[id], None, now).await?.first() {
            Some(Redriven::As(new)) => {
                (to, about) = (format!("/tasks/{new}"), *new);
                Said::Redriven
            }
            Some(Redriven::Twin(twin)) => {
                about = *twin;
                Said::Twin
            }
            _ => return Err(Problem::not_found("dead letter", id)),
        },
        "resolve" => closed(acting.resolve(&[id], now).await?, Said::Resolved)?,
        "discard" => closed(acting.discard(&[id], now).await?, Said::Discarded)?,
        "acknowledge" => acting.acknowledge(id, now).await.map(|()| Said::Acknowledged)?,
        "take-over" => {
            let owner = act.fields.get("owner").unwrap_or(&act.visit.who.name);
            acting.take_over(id, owner, now).await.map(|()| Said::TakenOver)?
        }
        other => return Err(Problem::not_found("action", other)),
    };
    app.wake();
    Ok(act.visit.frame.go(&to, said, &about.to_string()))
}

/// A policy that is not taken is shown as it was typed, with the reason.
async fn edit_policy(app: &App, act: Act, id: TaskId) -> Answer<Response> {
    let (typed, to) = (act.fields.text("policy"), format!("/tasks/{id}"));
    let edited = match read_policy(typed) {
        Ok(policy) => crate::server::tasks::set_policy(app, &act.visit.who.name, id, policy).await,
        Err(problem) => Err(problem),
    };
    match edited {
        Ok(()) => {
            app.wake();
            Ok(act.visit.frame.go(&to, Said::PolicyEdited, &id.to_string()))
        }
        Err(problem) if super::is_typed_wrong(&problem) => {
            let mut frame = act.visit.frame.clone();
            frame.here = to;
            let page = found(app, frame, id).await?;
            let page = Page { policy_json: typed.to_owned(), wrong: Some(problem.detail.clone()), ..page };
            Ok(super::answered(Some(&problem), page.f.show(&page)))
        }
        Err(problem) => Err(problem),
    }
}

fn read_policy(json: &str) -> Answer<Policy> {
    let wrong = |e| Problem::new(StatusCode::BAD_REQUEST, "not_understood", format!("policy: {e}"));
    let policy: Policy = serde_json::from_str(json).map_err(wrong)?;
    policy.validate()?;
    Ok(policy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_gets_one_word() {
        assert_eq!(quoted("it's $HOME"), "'it'\\''s $HOME'");
        assert_eq!((pretty("{\"a\":1}").as_str(), pretty("no json").as_str()), ("{\n  \"a\": 1\n}", "no json"));
    }

    #[test]
    fn curl_does_the_same_again() {
        let said = |json: &str| sent(&serde_json::from_str(json).unwrap());
        assert_eq!(
            said(
                r#"{"method": "put", "url": "https://a.example/x?ids={1,2}", "headers": {"x-empty": ""}, "body": "it's"}"#
            ),
            "curl -g -X 'PUT' 'https://a.example/x?ids={1,2}' \\\n  -H 'x-empty;' \\\n  -H 'content-type:' \\\n  --data-raw 'it'\\''s'"
        );
        assert_eq!(
            said(r#"{"url": "https://a.example", "headers": {"Content-Type": "image/png"}, "body_base64": "/wA="}"#),
            "printf %s '/wA=' | base64 -d |\ncurl -g -X 'POST' 'https://a.example' \\\n  -H 'Content-Type: image/png' \\\n  --data-binary @-"
        );
        assert_eq!(said(r#"{"method": "HEAD", "url": "https://a.example"}"#), "curl -g --head 'https://a.example'");
    }

    #[test]
    fn what_cannot_be_read_is_not_sent_again() {
        let task = |params: &str| Task {
            params: params.to_owned(),
            ..redrive::testing::task(redrive::NewTask::new("m", &1).unwrap())
        };
        assert!(curl(&task("{\"a\": 1}")).unwrap().contains("\"params\":{\"a\":1}"));
        assert_eq!(curl(&task("\"redrive:aes256gcm:k:AAAA\"")), None);
        assert_eq!(curl(&task("no json")), None);
    }
}
