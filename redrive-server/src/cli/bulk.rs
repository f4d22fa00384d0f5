//! What is done to many: to those that are named, or to all that a filter finds.
//!
//! *Invariants.* What a filter finds is counted first and a person is asked, unless they said `--yes`; where nobody can be asked,
//! nothing is done. Those that are named are not asked for: whoever writes ids down knows how many there are.
//!
//! *Failure.* Whoever is interrupted can begin again: the filter finds the rest. What was done is done, and in the audit.

use std::io::{BufRead as _, IsTerminal as _, Write as _};

use clap::Args;
use indicatif::{HumanCount, ProgressBar, ProgressStyle};
use redrive::TaskId;
use serde_json::{Value, json};

use super::api::{Api, Query};
use super::failure::Failure;
use super::out::{Out, aside, count, heard_or_not, line, text};

/// Failures that are shown to people.
const MOST_SHOWN: usize = 10;

/// To which, and how.
#[derive(Debug, Args)]
pub(super) struct Many {
    /// Ids; or say which with the flags below.
    #[arg(value_name = "ID")]
    ids: Vec<TaskId>,
    /// All of them, instead of a filter.
    #[arg(long, conflicts_with = "ids")]
    all: bool,
    /// Only say how many it would be.
    #[arg(long)]
    dry_run: bool,
    /// Do not ask.
    #[arg(long, short)]
    yes: bool,
    /// How many in a second, at the most.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
    /// What you have to say about it, for the audit.
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
}

/// What is to be done.
pub(super) struct Action<'a> {
    /// Where it is asked for: `tasks` or `dead`.
    pub(super) to: &'a str,
    /// What one is called, and many.
    pub(super) noun: (&'a str, &'a str),
    pub(super) verb: &'a str,
    pub(super) filter: Query,
    /// What the request says besides.
    pub(super) more: Query,
}

impl Many {
    /// The id, if just one is named: that has an answer of its own.
    pub(super) fn one(&self) -> Option<TaskId> {
        match self.ids.as_slice() {
            [id] if !self.dry_run => Some(*id),
            _ => None,
        }
    }

    pub(super) fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    pub(super) async fn run(&self, action: Action<'_>, api: &Api, out: Out) -> anyhow::Result<()> {
        let body = self.body(&action)?;
        let path = [action.to, "actions"];
        let is_filter = self.ids.is_empty();
        let shows = std::io::stderr().is_terminal() && !out.json;
        let mut total = (!is_filter).then_some(self.ids.len() as u64);
        if self.dry_run || (is_filter && (!self.yes || shows)) {
            let found = dry_run(api, &path, &body).await?;
            if self.dry_run {
                return Ok(out.say(&found, action.would(&found))?);
            }
            total = found.pointer("/count/n").and_then(Value::as_u64);
            match total {
                Some(0) => return Ok(out.say(&found, format!("{}: there are none", action.verb))?),
                _ if self.yes => {}
                _ => agreed(&action.would(&found))?,
            }
        }
        let (mut last, bar) = (Value::Null, bar(shows, total));
        let went = tokio::select! {
            went = follow(api, &path, &body, out, &bar, &mut last) => went,
            Ok(()) = tokio::signal::ctrl_c() => Err(interrupted(&last).into()),
        };
        bar.finish_and_clear();
        went?;
        finished(&action, &last, !is_filter, out)
    }

    fn body(&self, action: &Action<'_>) -> Result<Query, Failure> {
        let mut body = action.more.clone();
        body.insert("action".into(), action.verb.into());
        match (self.ids.is_empty(), action.filter.is_empty()) {
            (false, true) => body.insert("ids".into(), json!(self.ids)),
            (true, false) if !self.all => body.insert("filter".into(), json!(action.filter)),
            (true, true) if self.all => body.insert("filter".into(), json!({})),
            (true, true) => {
                let said =
                    format!("name {} by their ids, say which with flags as --method, or say --all", action.noun.1);
                return Err(Failure::invalid(said));
            }
            (true, false) => return Err(Failure::invalid("--all is all of them: it cannot be given beside a filter")),
            (false, false) => return Err(Failure::invalid("either ids are given or a filter, not both")),
        };
        if let Some(rate) = self.rate {
            body.insert("per_second".into(), rate.into());
        }
        if let Some(note) = &self.note {
            body.insert("note".into(), note.as_str().into());
        }
        Ok(body)
    }
}

impl Action<'_> {
    /// "cancel 1,234 tasks"
    fn would(&self, found: &Value) -> String {
        let one = found.pointer("/count/n").and_then(Value::as_u64) == Some(1);
        format!("{} {} {}", self.verb, count(found, "count"), if one { self.noun.0 } else { self.noun.1 })
    }
}

async fn dry_run(api: &Api, path: &[&str], body: &Query) -> Result<Value, Failure> {
    let mut body = body.clone();
    body.insert("dry_run".into(), true.into());
    let mut lines = api.post_for_lines(path, Value::Object(body).to_string()).await?;
    lines.next().await?.ok_or_else(broken_off)
}

/// Asks, if there is somebody to be asked.
pub(super) fn agreed(would: &str) -> Result<(), Failure> {
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        let said = format!("this would {would}; say --yes to do it, or --dry-run to only count. Nothing was done");
        return Err(Failure::invalid(said));
    }
    _ = write!(std::io::stderr(), "{would}? [y/N] ");
    _ = std::io::stderr().flush();
    let mut answer = String::new();
    _ = std::io::stdin().lock().read_line(&mut answer);
    match answer.trim().to_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Failure::failed("nothing was done")),
    }
}

/// It moves on a terminal, and is not there elsewhere.
fn bar(shows: bool, total: Option<u64>) -> ProgressBar {
    if !shows {
        return ProgressBar::hidden();
    }
    let bar = total.map_or_else(ProgressBar::no_length, ProgressBar::new);
    let style = "{bar:40} {human_pos} of {human_len}, {eta} left";
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    bar
}

/// Does it, and shows how far it is. `last` is the line that came last, also if it is broken off.
async fn follow(
    api: &Api,
    path: &[&str],
    body: &Query,
    out: Out,
    bar: &ProgressBar,
    last: &mut Value,
) -> anyhow::Result<()> {
    let mut lines = api.post_for_lines(path, json!(body).to_string()).await?;
    while let Some(said) = lines.next().await? {
        if out.json {
            heard_or_not(line(&said))?;
        }
        bar.set_position(reached(&said));
        *last = said;
        if text(last, "state") != "running" {
            return Ok(());
        }
    }
    Err(broken_off().into())
}

/// A server notices that nobody listens any more, and stops after the batch under way: of that nothing is known here.
fn interrupted(last: &Value) -> Failure {
    let said = format!(
        "stopped by Ctrl-C: {}, and perhaps the batch under way; the same command goes on with the rest",
        outcome(last)
    );
    Failure::new(Failure::INTERRUPTED, said)
}

pub(super) fn broken_off() -> Failure {
    Failure::new(Failure::UNREACHABLE, "the answer broke off; what was done by then is done, and in the audit")
}

fn number(said: &Value, of: &str) -> u64 {
    said.get(of).and_then(Value::as_u64).unwrap_or(0)
}

fn skipped(said: &Value) -> Vec<(&String, u64)> {
    let all = said.get("skipped").and_then(Value::as_object);
    all.into_iter().flatten().map(|(why, n)| (why, n.as_u64().unwrap_or(0))).collect()
}

fn reached(said: &Value) -> u64 {
    let skipped: u64 = skipped(said).iter().map(|(_, n)| n).sum();
    number(said, "done") + number(said, "requested") + number(said, "failed") + skipped
}

/// Says what came of it.
fn finished(action: &Action<'_>, last: &Value, named: bool, out: Out) -> anyhow::Result<()> {
    if let Some(problem) = last.get("problem") {
        return Err(Failure::of(problem).into());
    }
    if !out.json {
        heard_or_not(line(format!("{}: {}", action.verb, outcome(last))))?;
    }
    let failures = last.get("failures").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    failures.iter().take(MOST_SHOWN).for_each(|it| aside(format!("  {}: {}", text(it, "0"), text(it, "1"))));
    let gone: u64 = skipped(last).iter().filter(|(why, _)| *why == "gone").map(|(_, n)| n).sum();
    match number(last, "failed") {
        0 if named && gone > 0 => {
            Err(Failure::not_found(format!("{gone} of the {} are not there", action.noun.1)).into())
        }
        0 => Ok(()),
        failed => Err(Failure::failed(format!("{failed} failed; the others are done")).into()),
    }
}

fn outcome(last: &Value) -> String {
    let mut said = format!("{} done", HumanCount(number(last, "done")));
    if let requested @ 1.. = number(last, "requested") {
        said += &format!(", {} when their attempt ends, unless it succeeds", HumanCount(requested));
    }
    for (why, n) in skipped(last).into_iter().filter(|(_, n)| *n > 0) {
        said += &format!(", {} passed over ({why})", HumanCount(n));
    }
    if let failed @ 1.. = number(last, "failed") {
        said += &format!(", {} failed", HumanCount(failed));
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_of_it_is_told_in_full() {
        let said = json!({ "done": 1_234, "requested": 2, "skipped": { "gone": 3, "twin": 0 }, "failed": 1 });
        assert_eq!(
            outcome(&said),
            "1,234 done, 2 when their attempt ends, unless it succeeds, 3 passed over (gone), 1 failed"
        );
        assert_eq!(reached(&said), 1_240);
    }
}
