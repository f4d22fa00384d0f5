//! Who appears in the demo, when, and how it is to end: a table.
//!
//! Times are in thirtieths of what the demo was given, so that it fits.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use redrive::{DeadReason, PolicyPatch};
use serde_json::{Value, json};

use super::upstream::Answer;

/// One task.
#[derive(Debug)]
pub(super) struct Part {
    /// Its key, too.
    pub(super) name: &'static str,
    /// When it is enqueued.
    pub(super) at: f64,
    /// What people are told then.
    pub(super) shows: &'static str,
    pub(super) target: &'static str,
    /// How the shop answers it.
    pub(super) answers: &'static [Answer],
    /// Policy fields of its own, as JSON.
    policy: &'static [(&'static str, &'static str)],
    /// Announced.
    pub(super) end: End,
}

/// How a task is to end, or has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It succeeded, with so many attempts.
    Done(RangeInclusive<u32>),
    /// Enqueued again with the key of another: there is one task.
    Twin,
    /// It waits for a person: why, and after how many attempts.
    Dead(DeadReason, u32),
    /// The same; people were reminded of it so often, and then somebody took it over.
    TakenOver(DeadReason, u32, RangeInclusive<u32>),
    /// It was dead, and a person brought it back.
    Redriven(DeadReason, u32),
    /// It has not ended.
    Waits(u32),
}

/// How often people are to be reminded before somebody takes the letter over.
pub(super) const REMINDERS: u32 = 2;
/// The part of whom they are reminded.
pub(super) const ESCALATED: &str = "order-4";
/// The part that is brought back, as whom, and when.
pub(super) const REDRIVEN: &str = "order-8";
pub(super) const BACK: &str = "order-8 again";
pub(super) const REDRIVE_AT: f64 = 22.0;
/// When the warehouse goes down, and comes back.
pub(super) const DOWN_AT: f64 = 12.0;
pub(super) const UP_AT: f64 = 19.0;

/// In as many attempts as it takes, but not in one.
const SEVERAL: RangeInclusive<u32> = 2..=u32::MAX;
const OK: Answer = Answer::Says(200, r#"{"state": "paid"}"#);
const OPEN: Answer = Answer::Says(200, r#"{"state": "open"}"#);
const BROKEN: Answer = Answer::Says(500, "cannot read property 'price' of null");

/// An order at the shop, which takes it at once unless more is said.
fn order(name: &'static str, at: f64, shows: &'static str) -> Part {
    Part { name, at, shows, target: "shop", answers: &[OK], policy: &[], end: End::Done(1..=1) }
}

/// A parcel for the warehouse, likewise.
fn parcel(name: &'static str, at: f64, shows: &'static str) -> Part {
    Part { target: "warehouse", ..order(name, at, shows) }
}

impl Part {
    fn answered(self, answers: &'static [Answer]) -> Self {
        Self { answers, ..self }
    }

    fn under(self, policy: &'static [(&'static str, &'static str)]) -> Self {
        Self { policy, ..self }
    }

    fn ends(self, end: End) -> Self {
        Self { end, ..self }
    }
}

/// All of them.
pub(super) fn parts() -> Vec<Part> {
    use Answer::{After, Hangs, Says};
    use DeadReason::{Exhausted, Rejected};
    vec![
        order("order-1", 0.5, "a request to a service that works"),
        order("order-1", 1.5, "the same key once more, as after a lost answer: it is not delivered twice")
            .ends(End::Twin),
        order("order-2", 2.5, "the service is out of order for a moment: 503, 503, then 200")
            .answered(&[Says(503, "back in a moment"), Says(503, "back in a moment"), OK])
            .ends(End::Done(3..=3)),
        order("order-3", 3.5, "the service is busy and says for how long: 429 with Retry-After")
            .answered(&[After(1), OK])
            .ends(End::Done(2..=2)),
        order(
            "order-4",
            4.0,
            "a bug in the service, and it matters: after 2 attempts people get mail until one takes it",
        )
        .answered(&[BROKEN])
        .under(&[("max_attempts", "2"), ("on_exhausted", "\"escalate\"")])
        .ends(End::TakenOver(Exhausted, 2, REMINDERS..=u32::MAX)),
        order("order-5", 5.0, "200 is not enough: it is done when the body says so (body.state == 'paid')")
            .answered(&[OPEN, OPEN, OK])
            .under(&[("success_if", "\"body.state == 'paid'\"")])
            .ends(End::Done(3..=3)),
        order("order-6", 6.5, "the service hangs: the attempt runs into its time limit")
            .answered(&[Hangs, OK])
            .under(&[("timeout", "2")])
            .ends(End::Done(SEVERAL)),
        order("order-7", 8.0, "the service refuses it: 422, no retry will mend that")
            .answered(&[Says(422, "there is no such article")])
            .ends(End::Dead(Rejected, 1)),
        order(REDRIVEN, 9.0, "a bug in the service: after 3 attempts it waits for a person")
            .answered(&[BROKEN])
            .under(&[("max_attempts", "3")])
            .ends(End::Redriven(Exhausted, 3)),
        order("order-9", 10.0, "the same bug, and nobody comes")
            .answered(&[BROKEN])
            .under(&[("max_attempts", "3")])
            .ends(End::Dead(Exhausted, 3)),
        parcel("parcel-1", 11.0, "a request to another service, while it is up"),
        parcel("parcel-2", 12.5, "a request to the warehouse, which is down now").ends(End::Done(SEVERAL)),
        parcel("parcel-3", 13.5, "and another one; the shop's orders do not wait for them").ends(End::Done(SEVERAL)),
        order(BACK, REDRIVE_AT, "the bug is mended, and ada redrives the order"),
    ]
}

/// The policy of a part: waits short enough for the story, all as it was announced.
pub(super) fn policy(part: &Part, unit: Duration) -> redrive::Result<PolicyPatch> {
    let units = |n: f64| humantime::format_duration(whole_millis(unit.mul_f64(n))).to_string();
    let mut patch = PolicyPatch::default();
    let backoff = json!({ "exponential": { "initial": units(1.0), "factor": 2.0, "max": units(3.0) } });
    for (field, value) in [("backoff", backoff), ("jitter", json!("none")), ("keep", json!(true))] {
        patch.set(field, value)?;
    }
    for (field, value) in part.policy {
        match *field {
            "timeout" => patch.set(field, units(value.parse().unwrap_or(1.0)))?,
            _ => patch.set(field, serde_json::from_str::<Value>(value).unwrap_or_default())?,
        }
    }
    Ok(patch)
}

pub(super) fn whole_millis(time: Duration) -> Duration {
    Duration::from_millis(time.as_millis() as u64)
}

impl End {
    /// Whether this is what was announced.
    pub(super) fn is_as(&self, announced: &Self) -> bool {
        let within =
            |is: &RangeInclusive<u32>, said: &RangeInclusive<u32>| said.contains(is.start()) && said.contains(is.end());
        match (self, announced) {
            (Self::Done(is), Self::Done(said)) => within(is, said),
            (Self::TakenOver(is, n, reminders), Self::TakenOver(said, m, some)) => {
                is == said && n == m && within(reminders, some)
            }
            _ => self == announced,
        }
    }

    /// Nothing more is to be expected.
    pub(super) fn is_final(&self) -> bool {
        !matches!(self, Self::Waits(_))
    }
}

fn times(n: &RangeInclusive<u32>, one: &str) -> String {
    match (*n.start(), *n.end()) {
        (1, 1) => format!("1 {one}"),
        (n, m) if n == m => format!("{n} {one}s"),
        (n, _) => format!("{n} or more {one}s"),
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let attempts = |n: &u32| times(&(*n..=*n), "attempt");
        match self {
            Self::Done(n) => write!(f, "done after {}", times(n, "attempt")),
            Self::Twin => f.write_str("the same task, nothing written"),
            Self::Dead(why, n) => write!(f, "dead, {} after {}", why.as_str(), attempts(n)),
            Self::TakenOver(why, n, reminders) => {
                write!(f, "dead, {} after {}; taken over after {}", why.as_str(), attempts(n), times(reminders, "mail"))
            }
            Self::Redriven(why, n) => write!(f, "dead, {} after {}; redriven", why.as_str(), attempts(n)),
            Self::Waits(n) => write!(f, "not ended, {} so far", attempts(n)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_has_a_policy_that_is_valid_at_any_pace() {
        for part in parts() {
            for unit in [10, 30, 600].map(|seconds| Duration::from_secs(seconds) / 30) {
                let policy = policy(&part, unit).unwrap().over(redrive::Policy::default());
                policy.validate().unwrap();
                assert!(policy.keep, "{}: what is done stays to be looked at", part.name);
            }
        }
    }

    #[test]
    fn the_story_goes_on_in_order() {
        assert!(parts().is_sorted_by(|a, b| a.at < b.at));
        assert!(parts().iter().all(|part| part.at < UP_AT || part.name == BACK));
    }

    #[test]
    fn ends_are_compared_with_what_was_announced() {
        use DeadReason::{Exhausted, Rejected};
        assert!(End::Done(4..=4).is_as(&End::Done(SEVERAL)) && !End::Done(1..=1).is_as(&End::Done(SEVERAL)));
        assert!(!End::Dead(Rejected, 1).is_as(&End::Dead(Exhausted, 1)));
        let announced = End::TakenOver(Exhausted, 2, 2..=u32::MAX);
        assert!(End::TakenOver(Exhausted, 2, 3..=3).is_as(&announced));
        assert!(!End::TakenOver(Exhausted, 2, 1..=1).is_as(&announced) && !End::Waits(1).is_as(&announced));
        assert_eq!(announced.to_string(), "dead, exhausted after 2 attempts; taken over after 2 or more mails");
    }
}
