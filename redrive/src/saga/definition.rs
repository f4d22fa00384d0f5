//! What a saga consists of, as data: it is stored with each saga, so a deploy does not rewrite those under way.

use std::collections::HashMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::backoff::{Backoff, Jitter};
use crate::duration;
use crate::error::{Error, Problems, Result};
use crate::policy::{Notify, Policy};

/// Most steps of a saga.
pub const MOST_STEPS: usize = 100;
/// Bytes of a saga's name.
pub const LONGEST_NAME: usize = 100;
/// Bytes of a step's name: with its round it is still a name for the barrier.
pub const LONGEST_STEP: usize = 90;
/// What the whole is called where a step's name is wanted.
pub(crate) const WHOLE: &str = "compensate";

/// A saga: named steps, which follow each other as `after` says.
///
/// ```
/// let trip: redrive::saga::Definition = serde_json::from_str(r#"{
///     "name": "book-trip",
///     "steps": [
///         { "name": "hotel" },
///         { "name": "flight", "after": ["hotel"] },
///         { "name": "mail", "after": ["flight"], "undo": "nothing" }
///     ],
///     "deadline": "1h"
/// }"#)?;
/// trip.validate()?;
/// # anyhow::Ok(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Definition {
    /// Its name.
    pub name: String,
    /// Its steps.
    pub steps: Vec<StepDef>,
    /// In which order steps are undone. Default: in reverse.
    #[serde(skip_serializing_if = "is_default")]
    pub compensation: Compensation,
    /// One handler that undoes the whole, instead of each step's own. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compensate_with: Option<With>,
    /// What becomes of the other undos when one has failed for good. Default: they wait for a person, too.
    #[serde(skip_serializing_if = "is_default")]
    pub on_undo_failure: OnUndoFailure,
    /// Past this time since its start it is undone, unless it is past its pivot. Default: no limit.
    #[serde(with = "duration::option", skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Duration>,
}

/// One step of a saga.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StepDef {
    /// Its name.
    pub name: String,
    /// What it does. Default: a call.
    #[serde(skip_serializing_if = "is_default")]
    pub kind: StepKind,
    /// The steps that must be done before it. Default: none, so it starts with the saga.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<String>,
    /// The point of no return: once it is done the saga only goes forward. Default: no.
    #[serde(skip_serializing_if = "is_default")]
    pub pivot: bool,
    /// What undoing it means. Default: its undo is called.
    #[serde(skip_serializing_if = "is_default")]
    pub undo: UndoKind,
    /// An irreversible step may stand before the pivot. If the saga is then undone, that is a gap. Default: no.
    #[serde(skip_serializing_if = "is_default")]
    pub allow_irreversible: bool,
    /// It is undone before those that do not say so. Default: no.
    #[serde(skip_serializing_if = "is_default")]
    pub undo_first: bool,
    /// The method of its tasks. Default: `saga/step`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// The part of the method that it is scheduled with, if that is split. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part: Option<String>,
    /// The same for its undo. Default: as `part`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub undo_part: Option<String>,
    /// The same for its confirmation. Default: as `part`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confirm_part: Option<String>,
    /// How it is tried again. Default: as the settings say for its method.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
    /// How its undo and its confirmation are tried again. Default: see [`undo_policy`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub undo_policy: Option<Policy>,
    /// No attempt begins later than this after it was started. Default: no limit.
    #[serde(with = "duration::option", skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Duration>,
    /// What its runner is told of it; nobody else looks at it. Default: null.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub spec: Value,
}

/// What a step does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum StepKind {
    /// Calls its runner.
    #[default]
    Call,
    /// Reserves something for a time. It is confirmed once nothing can go wrong any more, or cancelled (undone).
    Reserve {
        /// How long the reservation holds, from when it was made.
        #[serde(with = "duration")]
        ttl: Duration,
        /// What happens when that time is up before everything else is done.
        #[serde(default)]
        when_up: WhenUp,
    },
    /// Waits for a time.
    Sleep {
        /// How long.
        #[serde(with = "duration")]
        time: Duration,
    },
    /// Waits to be told: by a person, by another system. What it is told is its output.
    WaitFor {
        /// What the signal is called.
        signal: String,
        /// For how long. `None`: for ever.
        #[serde(default, with = "duration::option")]
        timeout: Option<Duration>,
        /// What happens when that time is up.
        #[serde(default)]
        when_up: WhenUp,
    },
}

/// What happens when the time of a wait or of a reservation is up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhenUp {
    /// The saga is undone.
    #[default]
    Compensate,
    /// This step and all after it are undone, and begin anew.
    BackTo(String),
}

/// What undoing a step means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UndoKind {
    /// Its undo is called.
    #[default]
    Compensate,
    /// There is nothing to undo.
    Nothing,
    /// It cannot be undone.
    Irreversible,
}

/// In which order steps are undone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Compensation {
    /// One after the other, the step that started last first.
    #[default]
    Reverse,
    /// All at once.
    Parallel,
    /// A step when all that came after it are undone.
    Graph,
}

/// What becomes of the other undos when one has failed for good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnUndoFailure {
    /// No other is started until a person has seen to it.
    #[default]
    Halt,
    /// The others go on.
    Continue,
}

/// A handler that undoes a whole saga.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct With {
    /// The method of its task. Default: `saga/compensate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// The part of the method that it is scheduled with, if that is split.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part: Option<String>,
    /// How it is tried again. Default: see [`undo_policy`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
    /// What its runner is told.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub spec: Value,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// How an undo or a confirmation is tried again, if nothing else is said: after 1 s, doubling up to 10 min, for 24 h; people are
/// told at the fifth failure. Then it is a dead letter, and the saga is stuck.
pub fn undo_policy() -> Policy {
    let day = Duration::from_secs(24 * 3600);
    Policy {
        max_attempts: None,
        max_duration: Some(day),
        backoff: Backoff::exponential(Duration::from_secs(1), 2.0, Duration::from_secs(600)),
        jitter: Jitter::Proportional(0.2),
        notify: Some(Notify::Failures(5)),
        ..Policy::default()
    }
}

impl StepDef {
    /// Whether it has tasks. What only waits has none.
    pub(crate) fn is_called(&self) -> bool {
        matches!(self.kind, StepKind::Call | StepKind::Reserve { .. })
    }

    pub(crate) fn is_reserve(&self) -> bool {
        matches!(self.kind, StepKind::Reserve { .. })
    }

    /// What happens when its time is up.
    pub(crate) fn when_up(&self) -> Option<&WhenUp> {
        match &self.kind {
            StepKind::Reserve { when_up, .. } | StepKind::WaitFor { when_up, .. } => Some(when_up),
            StepKind::Call | StepKind::Sleep { .. } => None,
        }
    }
}

impl Definition {
    /// Whether it makes sense; if not, all that is wrong with it.
    pub fn validate(&self) -> Result<()> {
        Flow::new(self.clone()).map(|_| ())
    }

    /// The method of a step's tasks.
    pub fn method_of(&self, step: &StepDef) -> String {
        step.method.clone().unwrap_or_else(|| format!("{}/{}", self.name, step.name))
    }

    /// The method of the task that undoes the whole.
    pub fn compensate_method(&self) -> Option<String> {
        let with = self.compensate_with.as_ref()?;
        Some(with.method.clone().unwrap_or_else(|| format!("{}/{WHOLE}", self.name)))
    }
}

/// A set of steps, by their places.
pub(crate) type Steps = u128;

/// A definition that is valid, and what follows from it.
#[derive(Debug, PartialEq)]
pub(crate) struct Flow {
    pub(crate) definition: Definition,
    by_name: HashMap<String, usize>,
    /// Of each step: the steps that it directly waits for.
    pub(crate) after: Vec<Steps>,
    /// Of each step: all that come after it.
    pub(crate) below: Vec<Steps>,
    /// Of each step: all that come before it.
    pub(crate) above: Vec<Steps>,
    pub(crate) pivot: Option<usize>,
}

impl Flow {
    pub(crate) fn new(definition: Definition) -> Result<Self> {
        let mut problems = Problems::default();
        check_alone(&definition, &mut problems);
        let mut by_name = HashMap::new();
        for (i, step) in definition.steps.iter().enumerate() {
            let first = by_name.insert(step.name.clone(), i).is_none();
            problems.require(first, &at(i, "name"), || format!("{:?} is another step's, too", step.name));
        }
        let after = links(&definition, &by_name, &mut problems);
        problems = problems.into_result().map_or_else(Err, |()| Ok(Problems::default()))?;
        let below = closure(&after).ok_or_else(|| Error::invalid("steps", "some wait for each other in a circle"))?;
        let pivot = definition.steps.iter().position(|step| step.pivot);
        let above = turned(&below);
        let flow = Self { definition, by_name, after, below, above, pivot };
        flow.check_pivot(&mut problems);
        flow.check_back_to(&mut problems);
        problems.into_result()?;
        Ok(flow)
    }

    pub(crate) fn steps(&self) -> &[StepDef] {
        &self.definition.steps
    }

    pub(crate) fn step(&self, i: usize) -> Option<&StepDef> {
        self.definition.steps.get(i)
    }

    pub(crate) fn place(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// A step and all that come after it.
    pub(crate) fn since(&self, i: usize) -> Steps {
        self.below.get(i).copied().unwrap_or(0) | 1 << i
    }

    /// All that come before a step.
    pub(crate) fn above(&self, i: usize) -> Steps {
        self.above.get(i).copied().unwrap_or(0)
    }

    /// Where a saga goes back to when the time of this step is up; `None`: it is undone.
    pub(crate) fn back_to(&self, i: usize) -> Option<usize> {
        match self.step(i)?.when_up()? {
            WhenUp::Compensate => None,
            WhenUp::BackTo(name) => self.place(name),
        }
    }

    /// With a pivot every step is before it or after it, so that when it runs nothing else does.
    fn check_pivot(&self, problems: &mut Problems) {
        let Some(pivot) = self.pivot else {
            for (i, step) in self.steps().iter().enumerate() {
                let ok = step.undo != UndoKind::Irreversible || step.allow_irreversible;
                problems.require(ok, &at(i, "undo"), || IRREVERSIBLE.into());
            }
            return;
        };
        let (above, below) = (self.above(pivot), self.since(pivot));
        for (i, step) in self.steps().iter().enumerate() {
            let is_above = above >> i & 1 == 1;
            problems.require(is_above || below >> i & 1 == 1, &at(i, "after"), || {
                "must be before the pivot or after it, not beside it".into()
            });
            let ok = step.undo != UndoKind::Irreversible || !is_above || step.allow_irreversible;
            problems.require(ok, &at(i, "undo"), || IRREVERSIBLE.into());
            problems.require(i == pivot || !step.pivot, &at(i, "pivot"), || "there can be but one".into());
        }
    }

    fn check_back_to(&self, problems: &mut Problems) {
        for (i, step) in self.steps().iter().enumerate() {
            let Some(WhenUp::BackTo(name)) = step.when_up() else { continue };
            let place = self.place(name);
            problems.require(place.is_some_and(|to| self.since(to) >> i & 1 == 1), &at(i, "back_to"), || {
                format!("{name:?} must be the step itself or one before it")
            });
            let one_handler = self.definition.compensate_with.is_some();
            problems.require(!one_handler, &at(i, "back_to"), || {
                "steps are undone one by one there; with compensate_with they cannot be".into()
            });
            let crosses = self.pivot.is_some_and(|pivot| self.above(i) >> pivot & 1 == 1);
            problems.require(!crosses, &at(i, "back_to"), || "there is no way back after the pivot".into());
        }
    }
}

const IRREVERSIBLE: &str =
    "an irreversible step must be the pivot or come after it, unless allow_irreversible says that a gap is accepted";

fn at(i: usize, field: &str) -> String {
    format!("steps[{i}].{field}")
}

fn is_name(name: &str, most: usize) -> bool {
    (1..=most).contains(&name.len()) && !name.contains(['\0', '/', '#']) && name.trim() == name
}

/// What can be said of each field by itself.
fn check_alone(definition: &Definition, p: &mut Problems) {
    let of = |most: usize| format!("must be of 1 to {most} bytes, without `/` and `#`, nor spaces around it");
    p.require(is_name(&definition.name, LONGEST_NAME), "name", || of(LONGEST_NAME));
    let n = definition.steps.len();
    p.require((1..=MOST_STEPS).contains(&n), "steps", || format!("must be from 1 to {MOST_STEPS}, are {n}"));
    definition.deadline.iter().for_each(|d| duration::check(*d, "deadline", p));
    check_policy("compensate_with.policy", definition.compensate_with.as_ref().and_then(|w| w.policy.as_ref()), p);
    for (i, step) in definition.steps.iter().enumerate() {
        p.require(is_name(&step.name, LONGEST_STEP), &at(i, "name"), || of(LONGEST_STEP));
        p.require(step.name != WHOLE, &at(i, "name"), || format!("{WHOLE:?} is what undoing the whole is called"));
        step.deadline.iter().for_each(|d| duration::check(*d, &at(i, "deadline"), p));
        check_policy(&at(i, "policy"), step.policy.as_ref(), p);
        check_policy(&at(i, "undo_policy"), step.undo_policy.as_ref(), p);
        check_kind(i, step, p);
    }
}

fn check_kind(i: usize, step: &StepDef, p: &mut Problems) {
    match &step.kind {
        StepKind::Call => {}
        StepKind::Reserve { ttl, .. } => {
            duration::check(*ttl, &at(i, "ttl"), p);
            p.require(step.undo == UndoKind::Compensate, &at(i, "undo"), || {
                "a reservation is cancelled by its undo".into()
            });
        }
        StepKind::Sleep { time } => duration::check(*time, &at(i, "time"), p),
        StepKind::WaitFor { signal, timeout, .. } => {
            p.require(is_name(signal, LONGEST_NAME), &at(i, "signal"), || "must be of 1 to 100 bytes".into());
            timeout.iter().for_each(|d| duration::check(*d, &at(i, "timeout"), p));
        }
    }
    if !step.is_called() {
        p.require(!step.pivot, &at(i, "pivot"), || "what only waits cannot be the pivot".into());
        p.require(step.undo != UndoKind::Irreversible, &at(i, "undo"), || "what only waits can be left".into());
    }
}

fn check_policy(field: &str, policy: Option<&Policy>, p: &mut Problems) {
    if let Some(Err(Error::Invalid(inner))) = policy.map(Policy::validate) {
        p.nest(field, inner);
    }
    let calls_back = policy.is_some_and(|policy| policy.on_final_failure.is_some() || policy.on_success.is_some());
    p.require(!calls_back, field, || "a step's callbacks are the saga's own".into());
}

/// Of each step, the places of those that it waits for.
fn links(definition: &Definition, by_name: &HashMap<String, usize>, p: &mut Problems) -> Vec<Steps> {
    let mut all = Vec::with_capacity(definition.steps.len());
    for (i, step) in definition.steps.iter().enumerate().take(MOST_STEPS) {
        let mut after: Steps = 0;
        for name in &step.after {
            match by_name.get(name) {
                Some(j) if *j < MOST_STEPS => after |= 1 << j,
                _ => p.add(at(i, "after"), format!("there is no step {name:?}")),
            }
        }
        all.push(after);
    }
    all
}

/// Of each step, all that come after it; `None` if there is a circle.
fn closure(after: &[Steps]) -> Option<Vec<Steps>> {
    let mut below: Vec<Steps> = vec![0; after.len()];
    let (mut placed, mut order): (Steps, Vec<usize>) = (0, Vec::new());
    while order.len() < after.len() {
        let ready = after.iter().enumerate().find(|(i, before)| placed >> i & 1 == 0 && *before & !placed == 0)?.0;
        placed |= 1 << ready;
        order.push(ready);
    }
    for i in order.into_iter().rev() {
        let mine = below.get(i)? | 1 << i;
        let before = after.get(i).copied()?;
        below.iter_mut().enumerate().filter(|(j, _)| before >> j & 1 == 1).for_each(|(_, below)| *below |= mine);
    }
    Some(below)
}

/// Of each step, those that have it among theirs.
fn turned(of: &[Steps]) -> Vec<Steps> {
    let who_has = |i: usize| of.iter().enumerate().fold(0, |all, (j, theirs)| all | (theirs >> i & 1) << j);
    (0..of.len()).map(who_has).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &str, after: &[&str]) -> StepDef {
        let after = after.iter().map(|&name| name.to_owned()).collect();
        StepDef { name: name.into(), after, ..StepDef::default() }
    }

    fn saga(steps: Vec<StepDef>) -> Definition {
        Definition { name: "s".into(), steps, ..Definition::default() }
    }

    fn said(definition: &Definition) -> String {
        definition.validate().map_or_else(|e| e.to_string(), |()| "fine".into())
    }

    #[test]
    fn what_cannot_be_is_said() {
        assert_eq!(said(&saga(vec![step("a", &[]), step("b", &["a"])])), "fine");
        assert!(said(&saga(vec![])).contains("from 1 to 100"));
        assert!(said(&saga(vec![step("a", &[]), step("a", &[])])).contains("another step's"));
        assert!(said(&saga(vec![step("a", &["b"]), step("b", &["a"])])).contains("circle"));
        assert!(said(&saga(vec![step("a", &["x"])])).contains("no step \"x\""));
        assert!(said(&saga(vec![step("a/b", &[])])).contains("without `/`"));
    }

    #[test]
    fn a_pivot_has_nothing_beside_it_and_nothing_irreversible_before_it() {
        let pivot = StepDef { pivot: true, undo: UndoKind::Irreversible, ..step("p", &["a"]) };
        assert_eq!(said(&saga(vec![step("a", &[]), pivot.clone(), step("c", &["p"])])), "fine");
        assert!(said(&saga(vec![step("a", &[]), pivot.clone(), step("c", &["a"])])).contains("not beside it"));
        let early = StepDef { undo: UndoKind::Irreversible, ..step("a", &[]) };
        assert!(said(&saga(vec![early.clone(), pivot.clone()])).contains("irreversible"));
        assert_eq!(said(&saga(vec![StepDef { allow_irreversible: true, ..early }, pivot])), "fine");
    }

    #[test]
    fn the_way_back_leads_to_a_step_before() {
        let wait = |to: &str, after: &[&str]| StepDef {
            kind: StepKind::WaitFor {
                signal: "paid".into(),
                timeout: Some(Duration::from_secs(1)),
                when_up: WhenUp::BackTo(to.into()),
            },
            ..step("w", after)
        };
        assert_eq!(said(&saga(vec![step("a", &[]), wait("a", &["a"])])), "fine");
        assert!(said(&saga(vec![step("a", &[]), wait("b", &["a"]), step("b", &["w"])])).contains("one before it"));
    }

    #[test]
    fn what_comes_after_is_known_over_any_number_of_steps() {
        let flow = Flow::new(saga(vec![step("c", &["b"]), step("a", &[]), step("b", &["a"]), step("x", &[])])).unwrap();
        assert_eq!(flow.since(1), 0b0111);
        assert_eq!(flow.above(0), 0b0110);
        assert_eq!(flow.since(3), 0b1000);
    }
}
