//! `redrive gate`: which targets are held back, and what a person decides about one.

use clap::{Subcommand, ValueEnum};
use redrive::{Lane, Timestamp};
use serde_json::{Value, json};

use super::Run;
use super::api::{Api, Query};
use super::out::{Column, Out, short, text, when};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List gates that have opened, or were held, at some time.
    Ls,
    /// Hold a gate open (nothing goes through) or closed (everything does), until it is released or reset.
    Hold {
        /// The gate: its name in the list, a method, http:HOST:PORT, or saga.http:HOST:PORT for the requests of sagas.
        gate: String,
        /// Which way.
        state: Held,
        /// Why, for others.
        #[arg(long)]
        note: Option<String>,
    },
    /// Let a gate go that is held: it is as it was, and if that is open it gives probes away at once.
    Release {
        /// The gate: its name in the list, http:HOST:PORT, or saga.http:HOST:PORT.
        gate: String,
    },
    /// Say that all is well: the gate is closed, and forgets.
    Reset {
        /// The gate: its name in the list, http:HOST:PORT, or saga.http:HOST:PORT.
        gate: String,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Held {
    Open,
    Closed,
}

const COLUMNS: &[Column] = &[
    ("gate", |gate, _| name(gate)),
    ("state", |gate, _| state(gate)),
    ("since", |gate, now| when(gate, "changed_at", now)),
    ("open until", |gate, now| open_until(gate, now)),
    ("failing since", |gate, now| when(gate, "failing_since", now)),
    ("opens", |gate, _| text(gate, "opens")),
    ("probes", |gate, _| probes(gate)),
    ("why", |gate, _| short(gate, "why")),
];

impl Run for Command {
    async fn run(self, api: &Api, out: Out) -> anyhow::Result<()> {
        match self {
            Self::Ls => {
                let answer = api.get(&["gates"], &Query::new()).await?;
                let gates = answer.get("gates").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
                Ok(out.list(gates, COLUMNS, "no gate has ever opened")?)
            }
            Self::Hold { gate, state, note } => {
                let state = match state {
                    Held::Open => "open",
                    Held::Closed => "closed",
                };
                act(&gate, "hold", &json!({ "state": state, "note": note }), api, out).await
            }
            Self::Release { gate } => act(&gate, "release", &json!({}), api, out).await,
            Self::Reset { gate } => act(&gate, "reset", &json!({}), api, out).await,
        }
    }
}

async fn act(gate: &str, verb: &str, body: &Value, api: &Api, out: Out) -> anyhow::Result<()> {
    let after = api.post(&["gates", gate, verb], body).await?;
    let said = format!("{}: {}; nodes follow within their beat", name(&after), state(&after));
    Ok(out.say(&after, said)?)
}

/// As commands take it: tasks and sagas each have a gate of their own for the same host, and its lane tells which it is.
fn name(gate: &Value) -> String {
    let (name, lane) = (text(gate, "name"), gate.get("lane").and_then(Value::as_i64));
    let is_of = |method: &str| lane == Some(Lane::part(method, &name).0.into());
    match [crate::http::METHOD, crate::saga::METHOD].iter().find(|method| is_of(method)) {
        Some(method) => format!("{method}:{name}"),
        None => name,
    }
}

/// When it lets something through by itself. One that is held does not.
fn open_until(gate: &Value, now: Timestamp) -> String {
    if text(gate, "held").is_empty() { when(gate, "open_until", now) } else { String::new() }
}

/// The probes of this round, or of the last one, that have ended.
fn probes(gate: &Value) -> String {
    let [passed, failed] = ["probes_passed", "probes_failed"].map(|n| gate.get(n).and_then(Value::as_u64).unwrap_or(0));
    if passed + failed == 0 { String::new() } else { format!("{passed} of {} good", passed + failed) }
}

/// What it lets through, and whether a person has decided that.
fn state(gate: &Value) -> String {
    match text(gate, "held").as_str() {
        "" => text(gate, "state").replace('_', "-"),
        held => format!("held {held}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_of_the_same_host_are_told_apart() {
        let gate = |lane: Lane, name: &str| json!({ "lane": lane, "name": name });
        let of = |method: &str| name(&gate(Lane::part(method, "pay.example:443"), "pay.example:443"));
        assert_eq!([of("http"), of("saga.http")], ["http:pay.example:443", "saga.http:pay.example:443"]);
        assert_eq!(name(&gate(Lane::of("http.billing"), "http.billing")), "http.billing");
    }

    #[test]
    fn a_gate_that_is_held_opens_at_no_time() {
        let gate = |held: Value| json!({ "state": "open", "held": held, "open_until": "1970-01-01T00:01:00Z" });
        assert_eq!(open_until(&gate(json!("open")), Timestamp::EPOCH), "");
        assert_eq!(probes(&json!({ "probes_passed": 3, "probes_failed": 1 })), "3 of 4 good");
        assert_eq!(probes(&json!({ "probes_passed": 0, "probes_failed": 0 })), "");
        assert_eq!(open_until(&gate(Value::Null), Timestamp::EPOCH), "in 1 min");
    }
}
