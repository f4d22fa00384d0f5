//! `redrive dead`: what waits for a person.

use clap::Subcommand;
use redrive::{TaskId, Timestamp};
use serde_json::{Value, json};

use super::Run;
use super::api::{Api, Query};
use super::bulk::{Action, Many};
use super::failure::Failure;
use super::filter::{HowMany, Listing, OfDead, given};
use super::out::{Column, Out, aside, details, heard_or_not, line, moment, short, text, when};
use super::task;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List dead letters, newest first.
    Ls {
        #[command(flatten)]
        which: OfDead,
        #[command(flatten)]
        how_many: HowMany,
    },
    /// Show a dead letter, and the task as it was when it died.
    Show {
        /// Its id: the task's.
        id: TaskId,
    },
    /// Bring letters back as new tasks, with their attempts and their time from the beginning.
    Redrive {
        #[command(flatten)]
        act: Act,
        /// Under another policy: the whole of it, as JSON. Fields that are left out have their built-in defaults.
        #[arg(long, value_name = "JSON", value_parser = json_value)]
        policy: Option<Value>,
    },
    /// Close letters: it is done, by other means.
    Resolve(Act),
    /// Close letters: it need not be done.
    Discard(Act),
    /// Say that you have seen letters. Reminders go on.
    Ack(Say),
    /// Make letters somebody's: nobody is reminded of them any more.
    TakeOver {
        #[command(flatten)]
        say: Say,
        /// Whose they are from now on. Default: yours.
        #[arg(long, value_name = "NAME")]
        owner: Option<String>,
    },
}

/// What is done to one or many.
#[derive(Debug, clap::Args)]
pub(super) struct Act {
    #[command(flatten)]
    many: Many,
    #[command(flatten)]
    which: OfDead,
}

/// What is said about some.
#[derive(Debug, clap::Args)]
pub(super) struct Say {
    /// Their ids.
    #[arg(value_name = "ID", required = true)]
    ids: Vec<TaskId>,
    /// What you have to say about it.
    #[arg(long, value_name = "TEXT", default_value = "")]
    note: String,
}

const COLUMNS: &[Column] = &[
    ("id", |letter, _| text(letter, "task/id")),
    ("method", |letter, _| short(letter, "task/method_name")),
    ("business", |letter, _| letter.get("task").map(task::business).unwrap_or_default()),
    ("reason", |letter, _| text(letter, "dead_reason")),
    ("died", |letter, now| when(letter, "dead_at", now)),
    ("attempts", |letter, _| text(letter, "task/attempt_count")),
    ("seen", |letter, now| when(letter, "acknowledged_at", now)),
    ("owner", |letter, _| short(letter, "owner")),
    ("last error", |letter, _| letter.get("task").map(task::error).unwrap_or_default()),
];

fn json_value(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|e| e.to_string())
}

impl Run for Command {
    async fn run(self, api: &Api, out: Out) -> anyhow::Result<()> {
        match self {
            Self::Ls { which, how_many } => {
                let listing =
                    Listing { of: "dead", query: which.fields(), columns: COLUMNS, none: "there is no such letter" };
                how_many.list(listing, api, out).await
            }
            Self::Show { id } => {
                let letter = api.get(&["dead", &id.to_string()], &Query::new()).await?;
                let shown = if out.json { line(letter) } else { print(&letter, out.now) };
                Ok(shown?)
            }
            Self::Redrive { act, policy } => act.run("redrive", policy, api, out).await,
            Self::Resolve(act) => act.run("resolve", None, api, out).await,
            Self::Discard(act) => act.run("discard", None, api, out).await,
            Self::Ack(say) => say.each("acknowledge", None, "is seen", api, out).await,
            Self::TakeOver { say, owner } => say.each("take-over", owner, "is taken over", api, out).await,
        }
    }
}

impl Act {
    async fn run(&self, verb: &str, policy: Option<Value>, api: &Api, out: Out) -> anyhow::Result<()> {
        let filter = self.which.fields();
        let mut more: Query = policy.map(|policy| ("policy".to_owned(), policy)).into_iter().collect();
        let Some(id) = self.many.one().filter(|_| filter.is_empty()) else {
            let noun = ("dead letter", "dead letters");
            return self.many.run(Action { to: "dead", noun, verb, filter, more }, api, out).await;
        };
        more.extend(given([("note", self.many.note().map(str::to_owned))]));
        match verb {
            "redrive" => redrive(id, more, api, out).await,
            _ => close(id, verb, more, api, out).await,
        }
    }
}

async fn close(id: TaskId, verb: &str, body: Query, api: &Api, out: Out) -> anyhow::Result<()> {
    api.post(&["dead", &id.to_string(), verb], &json!(body)).await?;
    let said = if verb == "resolve" { "resolved" } else { "discarded" };
    Ok(out.say(&json!({ "id": id, "state": said }), format!("{id} is {said}"))?)
}

async fn redrive(id: TaskId, body: Query, api: &Api, out: Out) -> anyhow::Result<()> {
    let answer = api.post(&["dead", &id.to_string(), "redrive"], &json!(body)).await?;
    let (state, new) = (text(&answer, "state"), text(&answer, "id"));
    let said = json!({ "id": id, "state": state, "as": new });
    if state == "twin" {
        if out.json {
            heard_or_not(line(said))?;
        }
        return Err(Failure::failed(format!("{id} stays: task {new} has its key, and lives")).into());
    }
    Ok(out.say(&said, format!("{id} is back, as task {new}"))?)
}

impl Say {
    /// One that cannot be done does not hold up the others. All are told; the first of them comes last, with its exit code. Where no
    /// other could be done either, it ends, and that comes last.
    async fn each(&self, verb: &str, owner: Option<String>, said: &str, api: &Api, out: Out) -> anyhow::Result<()> {
        let (body, mut first) = (json!(given([("note", Some(self.note.clone())), ("owner", owner)])), None);
        for id in &self.ids {
            match api.post(&["dead", &id.to_string(), verb], &body).await {
                Ok(_) => {
                    let json = json!({ "id": id, "state": said.trim_start_matches("is ") });
                    heard_or_not(out.say(&json, format!("{id} {said}")))?;
                }
                Err(e) if !e.is_of_one() => {
                    aside(format!("it ends at {id}: nothing after it was tried"));
                    first.replace(e).into_iter().for_each(aside);
                    break;
                }
                Err(e) if first.is_none() => first = Some(e),
                Err(e) => aside(format!("{id}: {e}")),
            }
        }
        first.map_or(Ok(()), |e| Err(e.into()))
    }
}

/// All about a letter, for people.
pub(super) fn print(letter: &Value, now: Timestamp) -> std::io::Result<()> {
    details(&[
        ("died", moment(letter, "dead_at", now)),
        ("reason", text(letter, "dead_reason")),
        ("seen", moment(letter, "acknowledged_at", now)),
        ("owner", text(letter, "owner")),
        ("note", text(letter, "note")),
        ("reminders", Some(text(letter, "remind_count")).filter(|n| n != "0").unwrap_or_default()),
        ("next reminder", moment(letter, "next_remind_time", now)),
    ])?;
    task::print_as_it_was(letter.get("task"), now)
}
