//! `redrive task`: tasks that wait or run.

use std::path::PathBuf;

use clap::Subcommand;
use redrive::{TaskId, Timestamp};
use serde_json::{Value, json};

use super::api::{Api, Query};
use super::bulk::{Action, Many};
use super::enqueue;
use super::failure::Failure;
use super::filter::{HowMany, Listing, OfTasks, given};
use super::out::{Column, Out, details, line, moment, short, text, when};
use super::{Run, dead};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List tasks, newest first.
    Ls {
        #[command(flatten)]
        which: OfTasks,
        #[command(flatten)]
        how_many: HowMany,
    },
    /// Show a task: its policy, its attempts, its last error. One that has ended is looked for among the dead letters and in
    /// the archive.
    Show {
        /// Its id.
        id: TaskId,
    },
    /// Make tasks due now, instead of at their next time. Attempts are counted as ever.
    Retry(Act),
    /// Cancel tasks: they are not tried again. One that runs is cancelled after its attempt, unless that succeeds.
    Cancel(Act),
    /// Make tasks dead letters, for somebody to look at.
    Fail(Act),
    /// Write tasks down, as POST /api/v1/tasks takes them. This takes a server.
    Enqueue {
        /// A file of JSON objects, one after the other. Default: standard input.
        file: Option<PathBuf>,
    },
}

/// What is done to one or many.
#[derive(Debug, clap::Args)]
pub(super) struct Act {
    #[command(flatten)]
    many: Many,
    #[command(flatten)]
    which: OfTasks,
}

const COLUMNS: &[Column] = &[
    ("id", |task, _| text(task, "id")),
    ("status", |task, _| text(task, "status")),
    ("method", |task, _| short(task, "method_name")),
    ("key", |task, _| short(task, "task_key")),
    ("business", |task, _| business(task)),
    ("attempts", |task, _| text(task, "attempt_count")),
    ("created", |task, now| when(task, "created_at", now)),
    ("due", |task, now| when(task, "next_retry_time", now)),
    ("last error", |task, _| error(task)),
];

impl Run for Command {
    async fn run(self, api: &Api, out: Out) -> anyhow::Result<()> {
        match self {
            Self::Ls { which, how_many } => {
                let listing =
                    Listing { of: "tasks", query: which.fields(), columns: COLUMNS, none: "there is no such task" };
                how_many.list(listing, api, out).await
            }
            Self::Show { id } => show(id, api, out).await,
            Self::Retry(act) => act.run("retry", api, out).await,
            Self::Cancel(act) => act.run("cancel", api, out).await,
            Self::Fail(act) => act.run("fail", api, out).await,
            Self::Enqueue { file } => enqueue::run(file.as_deref(), api, out).await,
        }
    }
}

impl Act {
    async fn run(&self, verb: &str, api: &Api, out: Out) -> anyhow::Result<()> {
        let filter = self.which.fields();
        match self.many.one().filter(|_| filter.is_empty()) {
            Some(id) => one(id, verb, self.many.note(), api, out).await,
            None => {
                let noun = ("task", "tasks");
                self.many.run(Action { to: "tasks", noun, verb, filter, more: Query::new() }, api, out).await
            }
        }
    }
}

async fn one(id: TaskId, verb: &str, note: Option<&str>, api: &Api, out: Out) -> anyhow::Result<()> {
    let body = given([("note", note.map(str::to_owned))]);
    let answer = api.post(&["tasks", &id.to_string(), verb], &json!(body)).await?;
    let said = match (verb, text(&answer, "state").as_str()) {
        ("retry", _) => "is due now",
        (_, "requested") => "runs; it ends after this attempt, unless that succeeds",
        ("fail", _) => "is a dead letter now",
        _ => "is cancelled",
    };
    let state = answer.get("state").cloned().unwrap_or_else(|| "due".into());
    Ok(out.say(&json!({ "id": id, "state": state }), format!("{id} {said}"))?)
}

/// Wherever it is.
async fn show(id: TaskId, api: &Api, out: Out) -> anyhow::Result<()> {
    let (place, mut found) = find(id, api).await?;
    if out.json {
        found.as_object_mut().map(|found| found.insert("found_in".into(), place.into()));
        return Ok(line(found)?);
    }
    match place {
        "tasks" => print(&found, out.now)?,
        "dead" => {
            line("It waits or runs no more: it is a dead letter.\n")?;
            dead::print(&found, out.now)?;
        }
        _ => {
            line("It has ended, and is in the archive.\n")?;
            print_ended(&found, out.now)?;
        }
    }
    Ok(())
}

/// A task, where it was found: it may move on while it is looked for, but only in this direction.
async fn find(id: TaskId, api: &Api) -> Result<(&'static str, Value), Failure> {
    for place in ["tasks", "dead"] {
        match api.get(&[place, &id.to_string()], &Query::new()).await {
            Err(e) if e.is_not_found() => {}
            found => return found.map(|found| (place, found)),
        }
    }
    // The archive has a list alone: the first entry from here on is it, or it is not there.
    let next = TaskId::from_i64(id.as_i64().saturating_add(1));
    let query = [("after".to_owned(), json!(next)), ("limit".to_owned(), json!(1))].into_iter().collect();
    let first = api.get(&["archive"], &query).await?.pointer_mut("/archive/0").map(Value::take);
    let is_it = |entry: &Value| text(entry, "task/id") == id.to_string();
    first.filter(is_it).map(|entry| ("archive", entry)).ok_or_else(|| {
        Failure::not_found(format!(
            "there is no task {id}, no such dead letter, and nothing in the archive; of those that succeeded only those are \
             kept whose policy says so"
        ))
    })
}

pub(super) fn business(task: &Value) -> String {
    match text(task, "business_type") {
        kind if kind.is_empty() => kind,
        kind => format!("{kind}/{}", text(task, "business_id")),
    }
}

/// The last error, for a table.
pub(super) fn error(task: &Value) -> String {
    last_error(task, short)
}

fn last_error(task: &Value, shown: fn(&Value, &str) -> String) -> String {
    match shown(task, "last_error/kind") {
        kind if kind.is_empty() => kind,
        kind => format!("{kind}: {}", shown(task, "last_error/message")),
    }
}

/// A field that is worth a line only if it is not as usual.
fn unless(usual: &str, task: &Value, of: &str) -> String {
    Some(text(task, of)).filter(|text| text != usual).unwrap_or_default()
}

/// All about a task, for people.
pub(super) fn print(task: &Value, now: Timestamp) -> std::io::Result<()> {
    let by = |of| match text(task, of) {
        who if who.is_empty() => who,
        who => format!(", by {who}"),
    };
    details(&[
        ("id", text(task, "id")),
        ("status", text(task, "status")),
        ("stop", unless("none", task, "cancel_requested")),
        ("method", text(task, "method_name")),
        ("key", text(task, "task_key")),
        ("business", business(task)),
        ("params", text(task, "params")),
        ("priority", unless("0", task, "priority")),
        ("attempts", text(task, "attempt_count")),
        ("crashes", unless("0", task, "crashes")),
        ("due", moment(task, "next_retry_time", now)),
        ("created", moment(task, "created_at", now) + &by("created_by")),
        ("updated", moment(task, "updated_at", now) + &by("updated_by")),
        ("node", text(task, "locked_by")),
        ("failing since", moment(task, "first_failed_at", now)),
        ("last error", last_error(task, text)),
        ("brought back from", text(task, "origin_id")),
    ])?;
    list(task, "history", |attempt| {
        let (n, at) = (text(attempt, "n"), moment(attempt, "at", now));
        format!("{n}. {at} {}: {}", text(attempt, "kind"), text(attempt, "message"))
    })?;
    match task.get("policy").and_then(Value::as_object).filter(|policy| !policy.is_empty()) {
        None => line("policy: the built-in one"),
        Some(policy) => {
            line("policy")?;
            policy.iter().try_for_each(|(name, value)| line(format!("  {name}: {value}")))
        }
    }
}

/// A task that has ended: it is not due, and waits no more.
pub(super) fn print_as_it_was(task: Option<&Value>, now: Timestamp) -> std::io::Result<()> {
    let mut task = task.cloned().unwrap_or_default();
    for field in ["status", "next_retry_time", "locked_by"] {
        task.as_object_mut().map(|task| task.remove(field));
    }
    line("")?;
    print(&task, now)
}

/// A list in a task, each in a line.
fn list(task: &Value, of: &str, shown: impl Fn(&Value) -> String) -> std::io::Result<()> {
    let items = task.get(of).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    if items.is_empty() {
        return Ok(());
    }
    line(of)?;
    items.iter().try_for_each(|item| line(format!("  {}", shown(item))))
}

fn print_ended(entry: &Value, now: Timestamp) -> std::io::Result<()> {
    details(&[
        ("ended", moment(entry, "ended_at", now)),
        ("as", text(entry, "ended_as")),
        ("by", text(entry, "ended_by")),
        ("dead reason", text(entry, "dead_reason")),
        ("result", text(entry, "result")),
        ("brought back as", text(entry, "redriven_as")),
        ("note", text(entry, "note")),
    ])?;
    print_as_it_was(entry.get("task"), now)
}
