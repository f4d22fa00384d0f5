//! `redrive audit`: who did what, and what was refused.

use clap::Subcommand;
use redrive::Timestamp;
use serde_json::Value;

use super::Run;
use super::api::Api;
use super::filter::{HowMany, Listing, given, moment};
use super::out::{Column, Out, short, when};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List what people did, newest first. With --json also what it was before and after.
    Ls {
        /// This person, or the token of this name.
        #[arg(long, value_name = "NAME")]
        who: Option<String>,
        /// What it begins with: dead., task.cancel; api. is what was refused.
        #[arg(long)]
        action: Option<String>,
        /// To what it was done: a task's id, a method, a setting.
        #[arg(long)]
        target: Option<String>,
        /// At this time or later: 2026-02-05T12:00:00Z, "2h ago".
        #[arg(long, value_name = "TIME", value_parser = moment)]
        from: Option<Timestamp>,
        /// Before this time.
        #[arg(long, value_name = "TIME", value_parser = moment)]
        before: Option<Timestamp>,
        #[command(flatten)]
        how_many: HowMany,
    },
}

const COLUMNS: &[Column] = &[
    ("when", |record, now| when(record, "at", now)),
    ("who", |record, _| short(record, "who")),
    ("what", |record, _| short(record, "action")),
    ("to", |record, _| short(record, "target")),
    ("outcome", |record, _| outcome(record)),
    ("note", |record, _| short(record, "note")),
];

impl Run for Command {
    async fn run(self, api: &Api, out: Out) -> anyhow::Result<()> {
        let Self::Ls { who, action, target, from, before, how_many } = self;
        let time = |time: Option<Timestamp>| time.map(|time| time.to_string());
        let query = given([
            ("who", who),
            ("action", action),
            ("target", target),
            ("from", time(from)),
            ("before", time(before)),
        ]);
        let listing = Listing { of: "audit", query, columns: COLUMNS, none: "nobody did such a thing" };
        how_many.list(listing, api, out).await
    }
}

fn outcome(record: &Value) -> String {
    match short(record, "outcome/refused") {
        why if !why.is_empty() => format!("refused: {why}"),
        // Of many, and it goes on or was broken off.
        _ if record.pointer("/after/finished") == Some(&false.into()) => "not finished".into(),
        _ => short(record, "outcome"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_was_broken_off_is_not_called_done() {
        let many =
            |finished: bool| json!({ "outcome": "done", "after": { "result": { "done": 500 }, "finished": finished } });
        assert_eq!((outcome(&many(true)), outcome(&many(false))), ("done".into(), "not finished".into()));
        assert_eq!(outcome(&json!({ "outcome": { "refused": "no such task" } })), "refused: no such task");
    }
}
