//! What a saga is told, and what comes of it: decided in memory, without any I/O, for `journals` to write.
//!
//! *Invariants.* Of what is told at once either all happens or nothing. What a person did is in the audit if something came of it, and not
//! otherwise. A start goes before whatever else is said at the same time.

use std::sync::Arc;

use serde_json::Value;

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::id::TaskId;
use crate::saga::{Begun, Doer, Event, Flow, Illegal, Next, SagaState, State, Work, advance};
use crate::store::{AuditEntry, Begins};
use crate::task::KeyHash;

use super::memory::{Kept, weight};

/// What is to be told to a saga.
#[derive(Clone, Debug)]
pub(super) enum Tell {
    /// It begins.
    Begin(Beginning),
    /// How something ended.
    Event(Event),
    /// What had failed begins again in a task that is there, or what is under way is taken over by it.
    Again(Work, Doer),
    /// Some work has failed, if this attempt has it or would have.
    Failed(Event, Doer),
    /// The same of a task that was given up, which was made when the saga had so many events.
    GivenUp { failed: Event, task: TaskId, made: Option<i64> },
    /// The tasks of this work are gone, if the saga still has so many events.
    Lost(Vec<Work>, i64),
    /// What a person or another system wants.
    Wish(Wish, Option<AuditEntry>),
    /// The time.
    Look,
}

impl Tell {
    /// Whether it counts only while somebody waits for the answer: who has gone by then has another attempt to come, or none.
    pub(super) fn is_of_an_attempt(&self) -> bool {
        matches!(self, Self::Again(..) | Self::Failed(..) | Self::GivenUp { .. })
    }

    /// Roughly how many bytes it adds to a write.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Begin(beginning) => beginning.begins.definition.len() + beginning.begins.input.len(),
            Self::Event(event) | Self::Wish(Wish::Event(event), _) => event_bytes(event),
            Self::Wish(Wish::Resolve { output, .. }, _) => weight(output),
            Self::Wish(Wish::Skip { .. } | Wish::Again(_) | Wish::Forward { .. }, _)
            | Self::Again(..)
            | Self::Failed(..)
            | Self::GivenUp { .. }
            | Self::Lost(..)
            | Self::Look => 0,
        }
    }
}

fn event_bytes(event: &Event) -> usize {
    match event {
        Event::Done { output: value, .. }
        | Event::Signal { payload: value, .. }
        | Event::Input { input: value, .. } => weight(value),
        _ => 0,
    }
}

/// A saga that is to begin.
#[derive(Clone, Debug)]
pub(super) struct Beginning {
    pub(super) flow: Arc<Flow>,
    pub(super) input: Arc<Value>,
    pub(super) begins: Begins,
}

/// What is wanted of a saga; which event that is depends on how it stands.
#[derive(Clone, Debug)]
pub(super) enum Wish {
    /// Just this.
    Event(Event),
    /// The step under way, or that has failed, is to be left out.
    Skip { step: String, by: String },
    /// It is done, with this result.
    Resolve { step: String, output: Value, by: String },
    /// What has failed is tried again, under new tasks.
    Again(Vec<Work>),
    /// It is to go on instead of back. `undone`: whether what may have been undone was.
    Forward { undone: Option<bool>, by: String },
}

/// What one saga has come to.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) state: State,
    /// Since when it stands as it does.
    pub(super) since: Timestamp,
    pub(super) input_hash: [u8; 16],
    /// What it is, if it begins with this.
    pub(super) begins: Option<Begins>,
    /// What is new in its journal.
    pub(super) events: Vec<Event>,
    /// The tasks that begin, and whether the saga was past its point of no return then.
    pub(super) start: Vec<(Work, bool)>,
    pub(super) stop: Vec<Work>,
    pub(super) audits: Vec<AuditEntry>,
    /// Of each thing that it was told, whether that was new, or why it cannot be.
    pub(super) answers: Vec<Result<bool>>,
    /// Whether it needs a person now, and did not before.
    pub(super) got_stuck: bool,
}

impl Outcome {
    /// Tells a saga all that there is to tell. `None`: there is none, and nobody begins it.
    pub(super) fn of_telling<'a>(
        id: &str,
        before: Option<&Kept>,
        tells: impl Iterator<Item = &'a Tell> + Clone,
        now: Timestamp,
    ) -> Option<Self> {
        let mut outcome = match (before, tells.clone().next()) {
            (Some(kept), _) => Self::new((*kept.state).clone(), kept.since, kept.input_hash, None),
            (None, Some(Tell::Begin(beginning))) => Self::beginning(beginning, now),
            (None, _) => return None,
        };
        let word = before.map(|kept| kept.state.word());
        for tell in tells {
            let answer = outcome.tell(id, tell, now);
            outcome.answers.push(answer);
        }
        if word != Some(outcome.state.word()) {
            outcome.since = now;
            outcome.got_stuck = outcome.state.word() == SagaState::Stuck;
        }
        Some(outcome)
    }

    fn beginning(beginning: &Beginning, now: Timestamp) -> Self {
        let state = State::new(beginning.flow.clone(), beginning.input.clone());
        Self::new(state, now, beginning.begins.input_hash.0, Some(beginning.begins.clone()))
    }

    fn new(state: State, since: Timestamp, input_hash: [u8; 16], begins: Option<Begins>) -> Self {
        let (events, start, stop, audits, answers) = Default::default();
        Self { state, since, input_hash, begins, events, start, stop, audits, answers, got_stuck: false }
    }

    /// Whether it was new, or why it cannot be.
    fn tell(&mut self, id: &str, tell: &Tell, now: Timestamp) -> Result<bool> {
        let conflict = |why: String| Error::Conflict { doing: "do that to saga", id: id.to_owned(), why };
        match tell {
            Tell::Begin(beginning) if self.state.seq > 0 => {
                same_start(id, self.input_hash, beginning.begins.input_hash)?;
                Ok(false)
            }
            Tell::Begin(_) => self.add([Some(Event::Began)], now).map_err(conflict),
            Tell::Event(event) => self.add([Some(event.clone())], now).map_err(conflict),
            Tell::Again(work, doer) => {
                let begun = self.state.begun(work);
                match self.state.is_awaited(work) && !begun.passes_to(doer) {
                    true => Ok(false), // it is somebody else's
                    false => self.begin_again(work, doer, now).map_err(conflict),
                }
            }
            Tell::Failed(failed, doer) => {
                let has_it = |begun: Begun| begun.is_by(doer) || begun.passes_to(doer);
                self.fail(failed, has_it, now).map_err(conflict)
            }
            Tell::GivenUp { failed, task, made } => {
                self.fail(failed, |begun| begun.is_of(*task, *made), now).map_err(conflict)
            }
            Tell::Lost(_, seq) if self.state.seq != *seq => Ok(false), // it has moved on
            Tell::Lost(work, _) => {
                let lost = work.iter().map(|work| Some(Event::Lost { work: work.clone() }));
                self.add(lost, now).map_err(conflict)
            }
            Tell::Look => self.add([None], now).map_err(conflict),
            Tell::Wish(wish, audit) => {
                if wish.was_heard(&self.state).map_err(conflict)? {
                    return Ok(false);
                }
                if let Some(end) = self.state.ended {
                    return Err(conflict(format!("it has ended: {end}")));
                }
                let events = wish.events(&self.state).map_err(conflict)?;
                let is_new = match wish {
                    Wish::Forward { .. } => self.add_at_once(events, now),
                    _ => self.add(events.into_iter().map(Some), now),
                };
                let is_new = is_new.map_err(conflict)?;
                self.audits.extend(audit.clone().filter(|_| is_new));
                Ok(is_new)
            }
        }
    }

    /// Adds events, and what follows from them; `None` is nothing but the time. All of them, or none.
    fn add(&mut self, events: impl IntoIterator<Item = Option<Event>>, now: Timestamp) -> Result<bool, String> {
        let mut all: Vec<Next> = Vec::new();
        for event in events {
            let state = all.last().map_or(&self.state, |next| &next.state);
            match advance(state, event, now) {
                Err(Illegal::Known) => {}
                Err(Illegal::Not(why)) => return Err(why),
                Ok(next) => all.push(next),
            }
        }
        let before = self.events.len();
        all.into_iter().for_each(|next| self.take(next));
        Ok(self.events.len() > before)
    }

    /// Adds events of which nothing follows before the last.
    fn add_at_once(&mut self, events: Vec<Event>, now: Timestamp) -> Result<bool, String> {
        match advance(&self.state, events, now) {
            Err(Illegal::Known) => Ok(false),
            Err(Illegal::Not(why)) => Err(why),
            Ok(next) => {
                self.take(next);
                Ok(true)
            }
        }
    }

    /// Some work has failed, if whoever says so has it.
    fn fail(&mut self, failed: &Event, has_it: impl Fn(Begun) -> bool, now: Timestamp) -> Result<bool, String> {
        let is_theirs = failed.work().is_some_and(|work| has_it(self.state.begun(work)));
        self.add(is_theirs.then(|| Some(failed.clone())), now)
    }

    /// Some work begins again without a new task: whoever says so has one.
    fn begin_again(&mut self, work: &Work, doer: &Doer, now: Timestamp) -> Result<bool, String> {
        let before = self.start.len();
        let started = Event::Started { work: work.clone(), task: Some(doer.task), turn: doer.turn };
        let is_new = self.add([Some(started)], now)?;
        let own = self.start.iter().skip(before).position(|(started, _)| started == work);
        own.into_iter().for_each(|own| _ = self.start.remove(before + own));
        Ok(is_new)
    }

    fn take(&mut self, next: Next) {
        self.events.extend(next.events);
        let committed = next.state.committed;
        self.start.extend(next.start.into_iter().map(|work| (work, committed)));
        self.stop.extend(next.stop);
        self.state = next.state;
    }
}

impl Wish {
    /// Whether it is a signal that was said before, under the same key. That counts as done, also when the saga has ended since: whoever
    /// says it again has not heard the answer.
    fn was_heard(&self, state: &State) -> Result<bool, String> {
        let Self::Event(Event::Signal { name, payload, key, .. }) = self else { return Ok(false) };
        match state.is_unheard(name, payload, key.as_deref()) {
            Ok(()) => Ok(false),
            Err(Illegal::Known) => Ok(true),
            Err(Illegal::Not(why)) => Err(why),
        }
    }

    /// The events that it is, as the saga stands.
    fn events(&self, state: &State) -> Result<Vec<Event>, String> {
        let open = |step: &str| {
            let idle = || format!("nothing of step {step:?} is under way or has failed");
            state.open_work(step).ok_or_else(idle)
        };
        Ok(match self {
            Self::Event(Event::Signal { name, .. }) if state.is_deaf_to(name) => {
                return Err(format!("it goes back, and no step hears {name:?} meanwhile"));
            }
            Self::Event(event) => vec![event.clone()],
            Self::Skip { step, by } => vec![Event::Skipped { work: open(step)?, by: by.clone() }],
            Self::Resolve { step, output, by } => {
                vec![Event::Done { work: open(step)?, output: output.clone(), by: Some(by.clone()) }]
            }
            Self::Again(work) => work.iter().cloned().map(Event::started).collect(),
            Self::Forward { undone, by } => forward(state, *undone, by)?,
        })
    }
}

/// What was undone is done again; so that must be known first, of each step.
fn forward(state: &State, undone: Option<bool>, by: &str) -> Result<Vec<Event>, String> {
    let said = |work: Work| match undone {
        Some(true) => Ok(Event::Done { work, output: Value::Null, by: Some(by.to_owned()) }),
        Some(false) => Ok(Event::Skipped { work, by: by.to_owned() }),
        None => Err(format!(
            "it is not known whether {:?} was undone: say so with it (`undone`), or try to undo it again",
            work.step.unwrap_or_default()
        )),
    };
    let last = Event::Forward { by: by.to_owned() };
    state.maybe_undone().map(said).chain([Ok(last)]).collect()
}

/// A start that is repeated must be the same.
pub(super) fn same_start(id: &str, there: [u8; 16], wanted: KeyHash) -> Result<()> {
    if there == wanted.0 {
        return Ok(());
    }
    let why = "it was started with another name or input; give this one another id".into();
    Err(Error::Conflict { doing: "start saga", id: id.to_owned(), why })
}

/// What makes two starts the same.
pub(super) fn input_hash(name: &str, input: &Value) -> KeyHash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(name.as_bytes()).update(b"\0");
    crate::new_task::hash_canonical(input, &mut hasher);
    KeyHash(hasher.finalize().as_bytes().first_chunk().copied().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::saga::{Op, StepDef, UndoKind};

    use super::*;

    const NOW: Timestamp = Timestamp::EPOCH;

    /// A saga whose only step, a point of no return, is under way: if it fails, a person is needed.
    fn under_way() -> Outcome {
        let step = StepDef { name: "pay".into(), pivot: true, undo: UndoKind::Irreversible, ..StepDef::default() };
        let definition = crate::saga::Definition { name: "t".into(), steps: vec![step], ..Default::default() };
        let flow = Arc::new(Flow::new(definition).unwrap());
        let state = State::new(flow, Arc::new(json!(1)));
        let mut outcome = Outcome::new(state, NOW, [0; 16], None);
        outcome.add([Some(Event::Began)], NOW).unwrap();
        outcome
    }

    fn pay() -> Work {
        Work { step: Some("pay".into()), op: Op::Run, round: 1 }
    }

    fn task(n: i64) -> TaskId {
        n.to_string().parse().unwrap()
    }

    fn doer(n: i64, turn: u32, origin: Option<i64>, made: i64) -> Doer {
        Doer { task: task(n), turn, origin: origin.map(task), made: Some(made) }
    }

    fn failed() -> Event {
        Event::Failed { work: pay(), refused: false, error: "who knows".into() }
    }

    #[test]
    fn a_failure_counts_if_it_is_of_who_has_the_work() {
        let (first, made) = (doer(1, 0, None, 2), Some(2));
        let second = Doer { turn: 1, ..first };
        let brought_back = doer(2, 0, Some(1), 2);
        let given_up = |task: TaskId| Tell::GivenUp { failed: failed(), task, made };
        let again = |doer: Doer| Tell::Again(pay(), doer);
        // What it is told one after the other, and whether each is new.
        let stories: [&[(Tell, bool)]; 6] = [
            &[(Tell::Failed(failed(), first), true)],
            &[(again(second), true), (Tell::Failed(failed(), first), false), (Tell::Failed(failed(), second), true)],
            &[(again(second), true), (given_up(task(1)), true)],
            &[(again(brought_back), true), (given_up(task(1)), false), (given_up(task(2)), true)],
            &[(given_up(task(1)), true), (again(brought_back), true), (Tell::Failed(failed(), brought_back), true)],
            &[(again(brought_back), true), (again(second), false), (again(doer(3, 0, Some(2), 2)), true)],
        ];
        for (i, story) in stories.into_iter().enumerate() {
            let mut saga = under_way();
            for (tell, is_new) in story {
                assert_eq!(saga.tell("t", tell, NOW).unwrap(), *is_new, "story {i}: {tell:?}");
            }
        }
    }

    #[test]
    fn work_that_was_started_anew_is_nobodys_who_had_it_before() {
        let mut saga = under_way();
        let (old, made) = (doer(1, 0, None, 2), Some(2));
        assert!(saga.tell("t", &Tell::Failed(failed(), old), NOW).unwrap());
        assert!(saga.tell("t", &Tell::Wish(Wish::Again(vec![pay()]), None), NOW).unwrap());
        assert!(!saga.tell("t", &Tell::GivenUp { failed: failed(), task: task(1), made }, NOW).unwrap());
        assert!(!saga.tell("t", &Tell::Again(pay(), doer(2, 0, Some(1), 2)), NOW).unwrap());
        let new = doer(3, 0, None, saga.state.seq);
        assert!(saga.tell("t", &Tell::Failed(failed(), new), NOW).unwrap());
    }

    /// A saga that is stuck, since `hotel` could not be undone.
    fn stuck_undo(failures: &[bool]) -> Outcome {
        let step = |name: &str, after: &[&str]| StepDef {
            name: name.into(),
            after: after.iter().map(|&name| name.into()).collect(),
            ..StepDef::default()
        };
        let steps = vec![step("hotel", &[]), step("car", &["hotel"])];
        let definition = crate::saga::Definition { name: "t".into(), steps, ..Default::default() };
        let state = State::new(Arc::new(Flow::new(definition).unwrap()), Arc::new(json!(1)));
        let mut outcome = Outcome::new(state, NOW, [0; 16], None);
        let work = |step: &str, op| Work { step: Some(step.into()), op, round: 1 };
        let failed = |work, refused| Event::Failed { work, refused, error: "no".into() };
        let hotel = Event::Done { work: work("hotel", Op::Run), output: json!(1), by: None };
        let begin = [Event::Began, hotel, failed(work("car", Op::Run), true)].map(Some);
        outcome.add(begin, NOW).unwrap();
        let fails = failures.iter().map(|refused| failed(work("hotel", Op::Undo), *refused));
        for (i, failed) in fails.enumerate() {
            let again = (i > 0).then(|| Some(Event::started(work("hotel", Op::Undo))));
            outcome.add(again.into_iter().chain([Some(failed)]), NOW).unwrap();
        }
        outcome
    }

    #[test]
    fn it_goes_forward_only_if_it_is_known_what_was_undone() {
        let forward = Event::Forward { by: "ada".into() };
        let wish = |undone| Tell::Wish(Wish::Forward { undone, by: "ada".into() }, None);
        // Refused or not, at each try.
        for (failures, is_known) in [(&[true][..], true), (&[false], false), (&[false, true], false)] {
            let mut saga = stuck_undo(failures);
            assert_eq!(saga.state.word(), SagaState::Stuck);
            let mut journaled = saga.state.clone();
            match saga.tell("t", &wish(None), NOW) {
                Ok(is_new) => assert!(is_new && is_known, "{failures:?}"),
                Err(e) => assert!(!is_known && e.to_string().contains("whether \"hotel\" was undone"), "{e}"),
            }
            for undone in [true, false].into_iter().filter(|_| !is_known) {
                let mut saga = stuck_undo(failures);
                assert!(saga.tell("t", &wish(Some(undone)), NOW).unwrap() && saga.state.word() == SagaState::Running);
                let begun: Vec<_> = saga.start.iter().rev().take(1).map(|(work, _)| work.clone()).collect();
                let (step, round) = if undone { ("hotel", 2) } else { ("car", 1) };
                assert_eq!(begun, [Work { step: Some(step.into()), op: Op::Run, round }]);
            }
            assert_eq!(journaled.apply(&forward, NOW), Ok(()), "what was written before is still read");
        }
    }
}
