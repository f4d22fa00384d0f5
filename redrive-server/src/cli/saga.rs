//! `redrive saga`: flows that are finished or undone, drawn as a tree, and what a person does about them.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Subcommand;
use indicatif::HumanCount;
use serde_json::{Value, json};

use super::Run;
use super::api::{Api, Query};
use super::bulk::{agreed, broken_off};
use super::failure::Failure;
use super::filter::{HowMany, Listing, given};
use super::out::{Column, Out, details, heard_or_not, line, moment, short, text, when};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List sagas, the latest first.
    Ls {
        /// In this state: running, waiting, compensating, stuck, succeeded, compensated, compensated_with_gaps, failed or killed.
        #[arg(long)]
        state: Option<String>,
        /// Of this name.
        #[arg(long)]
        name: Option<String>,
        /// Whose id begins so.
        #[arg(long, value_name = "TEXT")]
        id_prefix: Option<String>,
        #[command(flatten)]
        how_many: HowMany,
    },
    /// Show a saga: its steps as a tree, with their states and times.
    Show {
        /// Its id.
        id: String,
        /// With its journal.
        #[arg(long)]
        journal: bool,
    },
    /// Start a saga, as JSON describes it.
    ///
    /// The file has the saga (name, steps); see the guide to sagas. A start that is repeated with the same id and input changes nothing.
    Start {
        /// Its id.
        id: String,
        /// The file; - for the standard input.
        file: PathBuf,
        /// What it is about, as JSON.
        #[arg(long, value_name = "JSON", default_value = "null")]
        input: String,
    },
    /// Tell a saga something that a step of it waits for.
    Signal {
        /// Its id.
        id: String,
        /// What the step waits for.
        signal: String,
        /// What it is told, as JSON.
        #[arg(default_value = "null")]
        payload: String,
        /// What makes it the same as one that was sent before, which then counts once.
        #[arg(long)]
        key: Option<String>,
    },
    /// Try now what waits to be tried again, and again what was given up.
    Retry(Which),
    /// Leave out what is under way, or has failed, of a step. An undo that is left out is a gap.
    Skip {
        /// The step.
        step: String,
        #[command(flatten)]
        which: Which,
    },
    /// Say that what is under way, or has failed, of a step is done.
    Resolve {
        /// The step.
        step: String,
        /// What came of it, as JSON: later steps reach it.
        #[arg(long, value_name = "JSON", default_value = "null")]
        output: String,
        #[command(flatten)]
        which: Which,
    },
    /// Give a saga another input, for all attempts to come.
    EditInput {
        /// The input, as JSON.
        input: String,
        #[command(flatten)]
        which: Which,
    },
    /// Let a saga go on that was going back.
    Forward {
        /// The steps of which nobody knows whether they were undone, since their undo was given up, were: they are done again.
        #[arg(long, conflicts_with = "not_undone")]
        undone: bool,
        /// They were not: they are still done.
        #[arg(long)]
        not_undone: bool,
        #[command(flatten)]
        which: Which,
    },
    /// Undo a saga: nothing new is begun, what was done is undone.
    #[command(visible_alias = "compensate")]
    Cancel(Which),
    /// End a saga as it is: nothing is undone.
    Kill(Which),
}

/// One, several, or all of a state and name.
#[derive(Debug, clap::Args)]
pub(super) struct Which {
    /// Their ids.
    #[arg(required_unless_present_any = ["all_of_state", "all_of_name"])]
    ids: Vec<String>,
    /// All in this state: running, waiting, compensating or stuck. They are counted first, and you are asked.
    #[arg(long, value_name = "STATE", conflicts_with = "ids")]
    all_of_state: Option<String>,
    /// All of this name that have not ended. They are counted first, and you are asked.
    #[arg(long, value_name = "NAME", conflicts_with = "ids")]
    all_of_name: Option<String>,
    /// Say which that would be, and do nothing.
    #[arg(long)]
    dry_run: bool,
    /// Do not ask.
    #[arg(long, short)]
    yes: bool,
    /// Why, for the audit.
    #[arg(long)]
    note: Option<String>,
}

const COLUMNS: &[Column] = &[
    ("id", |saga, _| short(saga, "id")),
    ("name", |saga, _| short(saga, "name")),
    ("state", |saga, _| text(saga, "state").replace('_', " ")),
    ("since", |saga, now| when(saga, "since", now)),
    ("started", |saga, now| when(saga, "created_at", now)),
    ("next time", |saga, now| when(saga, "look_at", now)),
];

impl Run for Command {
    async fn run(self, api: &Api, out: Out) -> anyhow::Result<()> {
        match self {
            Self::Ls { state, name, id_prefix, how_many } => {
                let query = given([("state", state), ("name", name), ("id_prefix", id_prefix)]);
                let listing = Listing { of: "sagas", query, columns: COLUMNS, none: "there are none" };
                how_many.list(listing, api, out).await
            }
            Self::Show { id, journal } => {
                let saga = api.get(&["sagas", &id], &Query::new()).await?;
                if out.json { Ok(line(&saga)?) } else { Ok(show(&saga, journal, out)?) }
            }
            Self::Start { id, file, input } => {
                let body = json!({ "id": id, "input": parsed("--input", &input)?, "saga": read(&file)? });
                let started = api.post(&["sagas"], &body).await?;
                let how = if started.get("existed") == Some(&true.into()) { "was there already" } else { "started" };
                Ok(out.say(&started, format!("{id}: {how}"))?)
            }
            Self::Signal { id, signal, payload, key } => {
                let body = json!({ "signal": signal, "payload": parsed("the payload", &payload)?, "key": key });
                api.post(&["sagas", &id, "signals"], &body).await?;
                Ok(out.say(&json!({ "id": id }), format!("{id}: told"))?)
            }
            Self::Retry(which) => which.act(api, out, json!({ "action": "retry" })).await,
            Self::Forward { undone, not_undone, which } => {
                let undone = (undone || not_undone).then_some(undone);
                which.act(api, out, json!({ "action": "forward", "undone": undone })).await
            }
            Self::Cancel(which) => which.act(api, out, json!({ "action": "cancel" })).await,
            Self::Kill(which) => which.act(api, out, json!({ "action": "kill" })).await,
            Self::Skip { step, which } => which.act(api, out, json!({ "action": "skip", "step": step })).await,
            Self::Resolve { step, output, which } => {
                let output = parsed("--output", &output)?;
                which.act(api, out, json!({ "action": "resolve", "step": step, "output": output })).await
            }
            Self::EditInput { input, which } => {
                let input = parsed("the input", &input)?;
                which.act(api, out, json!({ "action": "edit_input", "input": input })).await
            }
        }
    }
}

impl Which {
    async fn act(self, api: &Api, out: Out, mut act: Value) -> anyhow::Result<()> {
        let verb = text(&act, "action").replace('_', " ");
        if let (Some(note), Some(act)) = (self.note, act.as_object_mut()) {
            act.insert("note".into(), note.into());
        }
        if let ([id], false) = (self.ids.as_slice(), self.dry_run) {
            return one_alone(api, out, id, &act).await;
        }
        let body = |dry_run: bool| {
            json!({
                "ids": self.ids, "state": self.all_of_state, "name": self.all_of_name, "dry_run": dry_run, "act": act,
            })
        };
        if self.ids.is_empty() && !self.dry_run && !self.yes {
            match follow(api, &body(true), |_| Ok(())).await?.0 {
                0 => return Ok(out.say(&json!({ "state": "finished", "done": 0, "failed": 0 }), "there are none")?),
                1 => agreed(&format!("{verb} 1 saga"))?,
                n => agreed(&format!("{verb} {} sagas", HumanCount(n)))?,
            }
        }
        let would = format!("would be {}", done(&text(&act, "action")));
        let mut gone = 0;
        let each = |saga: &Value| {
            gone += u64::from(text(saga, "code") == "not_found");
            match self.dry_run {
                true => out.say(saga, format!("{}: {would}", text(saga, "id"))),
                false => heard_or_not(said(saga, out)),
            }
        };
        let (n, last) = follow(api, &body(self.dry_run), each).await?;
        finished(n, gone, &last, out)
    }
}

/// Just one has an answer of its own, which says whether there is such a saga.
async fn one_alone(api: &Api, out: Out, id: &str, act: &Value) -> anyhow::Result<()> {
    api.post(&["sagas", id, "actions"], act).await?;
    Ok(said(&json!({ "id": id, "state": "done" }), out)?)
}

/// What a saga is once that is done to it.
fn done(action: &str) -> &str {
    match action {
        "retry" => "retried",
        "skip" => "without the step",
        "resolve" => "done with the step",
        "edit_input" => "given the input",
        "forward" => "sent forward",
        "cancel" => "cancelled",
        "kill" => "killed",
        other => other,
    }
}

/// Does it; how many there were, and the last line.
async fn follow(
    api: &Api,
    body: &Value,
    mut each: impl FnMut(&Value) -> std::io::Result<()>,
) -> anyhow::Result<(u64, Value)> {
    let mut lines = api.post_for_lines(&["sagas", "actions"], body.to_string()).await?;
    let mut n = 0;
    while let Some(said) = lines.next().await? {
        if said.get("id").is_none() {
            return Ok((n, said));
        }
        n += 1;
        each(&said)?;
    }
    Err(broken_off().into())
}

/// A line about one of them.
fn said(saga: &Value, out: Out) -> std::io::Result<()> {
    let how = match text(saga, "problem") {
        why if !why.is_empty() => why,
        _ => text(saga, "state").replace('_', " "),
    };
    out.say(saga, format!("{}: {how}", text(saga, "id")))
}

/// Says what came of `n` of them, of which so many are not there.
fn finished(n: u64, gone: u64, last: &Value, out: Out) -> anyhow::Result<()> {
    if let Some(problem) = last.get("problem") {
        return Err(Failure::of(problem).into());
    }
    match last.get("failed").and_then(Value::as_u64) {
        Some(failed @ 1..) if failed == gone => Err(Failure::not_found(format!("{gone} of {n} are not there")).into()),
        Some(failed @ 1..) => Err(Failure::failed(format!("{failed} of {n} could not be done")).into()),
        _ if n == 0 && !out.json => Ok(line("there are none")?),
        _ => Ok(()),
    }
}

fn parsed(what: &str, json: &str) -> Result<Value, Failure> {
    serde_json::from_str(json).map_err(|e| Failure::invalid(format!("{what} is no JSON: {e}")))
}

fn read(file: &PathBuf) -> anyhow::Result<Value> {
    let text = match file.to_str() {
        Some("-") => std::io::read_to_string(std::io::stdin()).context("reading the standard input")?,
        _ => std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?,
    };
    Ok(parsed(&file.display().to_string(), &text)?)
}

fn show(saga: &Value, journal: bool, out: Out) -> std::io::Result<()> {
    details(&[
        ("saga", text(saga, "id")),
        ("name", text(saga, "name")),
        ("state", format!("{}, {}", text(saga, "state").replace('_', " "), when(saga, "since", out.now))),
        ("started", moment(saga, "created_at", out.now)),
        ("goes on", if is_deadline(saga) { String::new() } else { moment(saga, "look_at", out.now) }),
        ("deadline", moment(saga, "deadline", out.now)),
        ("input", text(saga, "input")),
        ("started with", text(saga, "started_with")),
    ])?;
    line("")?;
    let steps = saga.get("steps").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    tree(steps, out).iter().try_for_each(line)?;
    if journal {
        line("")?;
        for event in saga.get("journal").and_then(Value::as_array).into_iter().flatten() {
            let rest: serde_json::Map<_, _> = event
                .as_object()
                .into_iter()
                .flatten()
                .filter(|(name, _)| !["seq", "at", "what"].contains(&name.as_str()))
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect();
            line(format!(
                "{:>4}  {}  {:10} {}",
                text(event, "seq"),
                text(event, "at"),
                text(event, "what"),
                Value::Object(rest)
            ))?;
        }
    }
    Ok(())
}

/// Whether the time that comes next is the one by which it must be done: it does not go on then, but back.
fn is_deadline(saga: &Value) -> bool {
    saga.get("look_at") == saga.get("deadline")
}

/// Each step below one that it waits for; one that waits for several is drawn once, and says which others.
fn tree(steps: &[Value], out: Out) -> Vec<String> {
    let (mut lines, mut drawn) = (Vec::new(), BTreeSet::new());
    let roots = steps.iter().filter(|step| before(step).is_empty());
    roots.for_each(|root| branch(root, steps, "", "", &mut drawn, &mut lines, out));
    lines
}

fn before(step: &Value) -> Vec<&str> {
    step.get("after").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect()
}

fn branch(
    step: &Value,
    all: &[Value],
    first: &str,
    rest: &str,
    drawn: &mut BTreeSet<String>,
    lines: &mut Vec<String>,
    out: Out,
) {
    let name = text(step, "name");
    if !drawn.insert(name.clone()) {
        return;
    }
    lines.push(format!("{first}{}", one(step, out)));
    // Below the last of those that it waits for, so that all of them stand above it.
    let follows =
        |next: &&Value| before(next).contains(&name.as_str()) && before(next).iter().all(|b| drawn.contains(*b));
    let below: Vec<&Value> = all.iter().filter(follows).collect();
    for (i, next) in below.iter().enumerate() {
        let is_last = i + 1 == below.len();
        let (joint, more) = if is_last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        branch(next, all, &format!("{rest}{joint}"), &format!("{rest}{more}"), drawn, lines, out);
    }
}

fn one(step: &Value, out: Out) -> String {
    let mark = match text(step, "state").as_str() {
        "done" | "confirmed" => "✓",
        "undone" => "↶",
        "refused" | "unknown" | "undo_failed" => "✗",
        "skipped" => "–",
        "pending" => "·",
        _ => "…",
    };
    let mut said = format!("{mark} {}: {}", text(step, "name"), text(step, "state").replace('_', " "));
    let mut add = |what: String| {
        if !what.is_empty() {
            said += &format!(", {what}");
        }
    };
    add(when(step, "changed_at", out.now));
    let round = text(step, "round");
    add(if round == "1" { String::new() } else { format!("round {round}") });
    add(if step.get("pivot") == Some(&true.into()) { "point of no return".into() } else { String::new() });
    let others = before(step);
    add(if others.len() > 1 { format!("after {}", others.join(" and ")) } else { String::new() });
    add(match step.get("attempts").and_then(Value::as_u64) {
        None | Some(0) => String::new(),
        Some(1) => "1 attempt failed".into(),
        Some(n) => format!("{n} attempts failed"),
    });
    let next = when(step, "next_at", out.now);
    add(if next.is_empty() { next } else { format!("next {next}") });
    add(short(step, "error"));
    said
}

#[cfg(test)]
mod tests {
    use redrive::Timestamp;

    use super::*;

    #[test]
    fn every_step_is_drawn_once_below_what_it_waits_for() {
        let step = |name: &str, after: &[&str], state: &str| json!({ "name": name, "after": after, "state": state, "round": 1 });
        let steps = [
            step("pay", &["hotel", "flight"], "refused"),
            step("order", &[], "undone"),
            step("hotel", &["order"], "undone"),
            step("flight", &["order"], "undo_failed"),
            step("mail", &["pay"], "pending"),
        ];
        let out = Out { json: false, now: Timestamp::EPOCH };
        let drawn = tree(&steps, out).join("\n");
        assert_eq!(
            drawn,
            "↶ order: undone\n├─ ↶ hotel: undone\n└─ ✗ flight: undo failed\n   └─ ✗ pay: refused, after hotel and flight\n      └─ · mail: pending"
        );
    }
}
