//! How a saga stands, as its journal tells: a fold over events that refuses what cannot have happened.
//!
//! *State.* Of each step, in which round it is and how far its run, its undo and its confirmation are. Of the saga, whether it is
//! past the point of no return, whether it goes back and how far, the signals that nobody has taken yet, the keys of all that came
//! with one, what earlier rounds have left behind, and how it ended.
//!
//! *Invariants.* Nothing happens after the end. What is started was not done, and what is done was started. Nothing is undone
//! that had no effect, and nothing once the saga is past its point of no return. An outcome that comes twice is
//! [`Illegal::Known`]: whoever brings it has nothing more to do. A gap stays one, whatever comes after it. What is tried again belongs to
//! the task that was made or brought back for that, and what a node died with to who has it after that ([`Begun`]): that it failed for
//! somebody who had it before does not matter any more.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

use super::begun::Begun;
use super::definition::{Flow, StepDef, StepKind, Steps};
use super::event::{Event, Op, SagaState, Work};
use crate::clock::Timestamp;

/// Most signals of a saga that nobody has taken: more than that is somebody's mistake.
pub(crate) const MOST_SIGNALS: usize = 1_000;

/// The error of work whose task is gone.
const LOST: &str = "its task is gone, and nobody has told what came of it";

/// How far something is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Doing {
    #[default]
    Idle,
    /// From when on it may have taken effect.
    Started,
    Done,
    /// A person left it out.
    Skipped,
    /// It failed without effect.
    Refused(String),
    /// It failed, and may have had an effect.
    Unknown(String),
    /// Its task is gone, and it may have had an effect: a person decides whether the saga goes on or back.
    Lost(String),
}

impl Doing {
    pub(crate) fn is_over(&self) -> bool {
        matches!(self, Self::Done | Self::Skipped)
    }

    pub(crate) fn has_failed(&self) -> bool {
        matches!(self, Self::Refused(_)) || self.is_unknown()
    }

    /// Whether it failed, and may have had an effect.
    pub(crate) fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown(_) | Self::Lost(_))
    }

    /// Whether an outcome of it is still wanted.
    pub(super) fn is_open(&self) -> bool {
        *self == Self::Started || self.has_failed()
    }
}
/// How far a step is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StepState {
    pub(crate) round: u32,
    /// When it was started, among all; 0: not yet.
    pub(crate) order: u32,
    /// When its run was started, and when that was done.
    pub(crate) started_at: Timestamp,
    pub(crate) done_at: Timestamp,
    pub(crate) run: Doing,
    pub(crate) undo: Doing,
    pub(crate) confirm: Doing,
    pub(crate) output: Option<Arc<Value>>,
    /// Its run was once given up without anybody knowing whether it had an effect: no later refusal says that there was none.
    pub(super) in_doubt: bool,
    /// The same of its undo.
    undo_in_doubt: bool,
    /// Of its run, its undo and its confirmation.
    begun: [Begun; 3],
}

impl StepState {
    fn new(round: u32) -> Self {
        Self {
            round,
            order: 0,
            started_at: Timestamp::EPOCH,
            done_at: Timestamp::EPOCH,
            run: Doing::Idle,
            undo: Doing::Idle,
            confirm: Doing::Idle,
            output: None,
            in_doubt: false,
            undo_in_doubt: false,
            begun: [Begun::default(); 3],
        }
    }

    pub(crate) fn of(&self, op: Op) -> &Doing {
        match op {
            Op::Run => &self.run,
            Op::Undo => &self.undo,
            Op::Confirm => &self.confirm,
        }
    }

    fn of_mut(&mut self, op: Op) -> &mut Doing {
        match op {
            Op::Run => &mut self.run,
            Op::Undo => &mut self.undo,
            Op::Confirm => &mut self.confirm,
        }
    }

    /// What may have had an effect once may still have it when it is tried again and refused.
    fn keep_in_doubt(&mut self, op: Op) {
        let (doing, in_doubt) = match op {
            Op::Run => (&mut self.run, &mut self.in_doubt),
            Op::Undo => (&mut self.undo, &mut self.undo_in_doubt),
            Op::Confirm => return, // whether it is refused or not, a person is needed
        };
        *in_doubt |= doing.is_unknown();
        if let (Doing::Refused(error), true) = (&mut *doing, *in_doubt) {
            *doing = Doing::Unknown(std::mem::take(error));
        }
    }

    /// Whether there is, or may be, something to undo.
    pub(crate) fn may_have_happened(&self) -> bool {
        self.run == Doing::Done || self.run.is_unknown()
    }
}

/// Where a saga goes back to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Back {
    /// `None`: all the way.
    pub(crate) to: Option<usize>,
}

/// A saga, as far as it has come.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct State {
    pub(crate) flow: Arc<Flow>,
    /// How many events there were.
    pub(crate) seq: i64,
    /// From when its deadline counts: its start, or when a person last sent it forward.
    pub(crate) timed_from: Timestamp,
    pub(crate) input: Arc<Value>,
    pub(crate) steps: Vec<StepState>,
    /// The one handler that undoes the whole.
    pub(crate) whole: Doing,
    whole_begun: Begun,
    /// It only goes forward.
    pub(crate) committed: bool,
    pub(crate) back: Option<Back>,
    pub(crate) signals: Vec<(String, Arc<Value>)>,
    /// The keys of the signals that had one, and what each of them said.
    heard: HashMap<String, [u8; 16]>,
    pub(crate) ended: Option<SagaState>,
    /// What steps have come to that have begun anew since.
    pub(crate) past: Past,
    round: u32,
    starts: u32,
}

/// What was, and is not in the steps any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Past {
    /// Something was undone.
    pub(crate) undid: bool,
    /// Something happened and was not undone.
    pub(crate) gaps: bool,
}

/// Why an event cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Illegal {
    /// It is known already: there is nothing to do.
    Known,
    /// It cannot have happened, or cannot be wanted, as the saga stands.
    Not(String),
}

fn not(why: impl Into<String>) -> Illegal {
    Illegal::Not(why.into())
}

type Applied = Result<(), Illegal>;

impl State {
    /// Before anything has happened.
    pub(crate) fn new(flow: Arc<Flow>, input: Arc<Value>) -> Self {
        let steps = flow.steps().iter().map(|_| StepState::new(1)).collect();
        Self {
            flow,
            seq: 0,
            timed_from: Timestamp::EPOCH,
            input,
            steps,
            whole: Doing::Idle,
            whole_begun: Begun::default(),
            committed: false,
            back: None,
            signals: Vec::new(),
            heard: HashMap::new(),
            ended: None,
            past: Past::default(),
            round: 1,
            starts: 0,
        }
    }

    /// One event further, or why not. What was refused has changed nothing.
    pub(crate) fn apply(&mut self, event: &Event, at: Timestamp) -> Applied {
        match (self.seq, event) {
            (0, Event::Began) => self.timed_from = at,
            (0, _) => return Err(not("it has not begun")),
            (_, Event::Began) => return Err(Illegal::Known),
            _ if self.ended.is_some() => return Err(Illegal::Known),
            _ => self.apply_later(event, at)?,
        }
        self.seq += 1;
        Ok(())
    }

    fn apply_later(&mut self, event: &Event, at: Timestamp) -> Applied {
        match event {
            Event::Began => Err(Illegal::Known),
            Event::Started { work, task, turn } => {
                let begun = Begun { seq: self.seq + 1, task: *task, turn: *turn };
                self.started(work, begun, at)
            }
            Event::Done { work, output, .. } => self.done(work, output, at),
            Event::Failed { work, refused: true, error } => self.failed(work, Doing::Refused(error.clone())),
            Event::Failed { work, refused: false, error } => self.failed(work, Doing::Unknown(error.clone())),
            Event::Lost { work } => self.failed(work, Doing::Lost(LOST.into())),
            Event::Skipped { work, .. } => self.skipped(work),
            Event::TimeUp { work } => self.time_up(work),
            Event::Signal { name, payload, key, .. } => self.signal(name, payload, key.as_deref()),
            Event::Rollback { to, .. } => self.rollback(to.as_deref()),
            Event::Round => self.next_round(),
            Event::Decided => self.decided(),
            Event::Forward { .. } => self.forward(at),
            Event::Input { input, .. } => {
                self.input = Arc::new(input.clone());
                Ok(())
            }
            Event::Ended { state, .. } => {
                self.ended = Some(*state);
                Ok(())
            }
        }
    }

    /// How far some work is, if it is of this round.
    pub(super) fn at(&self, work: &Work) -> Option<&Doing> {
        let Some(name) = &work.step else { return Some(&self.whole) };
        let step = self.flow.place(name).and_then(|i| self.steps.get(i))?;
        (step.round == work.round).then(|| step.of(work.op))
    }

    /// The same, to be changed; an error if it is of another round, or of no step.
    fn doing(&mut self, work: &Work) -> Result<&mut Doing, Illegal> {
        let Some(name) = &work.step else { return Ok(&mut self.whole) };
        let step = self.flow.place(name).and_then(|i| self.steps.get_mut(i));
        let step = step.ok_or_else(|| not(format!("there is no step {name:?}")))?;
        if step.round != work.round {
            return Err(Illegal::Known); // it has gone back since
        }
        Ok(step.of_mut(work.op))
    }

    pub(super) fn place(&self, work: &Work) -> Option<usize> {
        self.flow.place(work.step.as_deref()?)
    }

    fn started(&mut self, work: &Work, begun: Begun, at: Timestamp) -> Applied {
        if begun.task.is_some() && self.at(work) == Some(&Doing::Started) {
            return self.taken_over(work, begun);
        }
        let startable = match (self.place(work), work.op) {
            // Journals have steps that began before all was done again that they stand on.
            (Some(i), Op::Run) => self.back.is_none() && self.is_ready(i),
            (Some(i), Op::Undo) => self.back.is_some() && self.steps.get(i).is_some_and(StepState::may_have_happened),
            (Some(i), Op::Confirm) => self.committed && self.steps.get(i).is_some_and(|s| s.run == Doing::Done),
            (None, op) => op == Op::Undo && self.back.is_some(),
        };
        let doing = self.doing(work)?;
        let again = doing.has_failed();
        if !(startable && (*doing == Doing::Idle || again)) {
            return Err(not(format!("{} cannot be started", work.place())));
        }
        *doing = Doing::Started;
        *self.begun_mut(work) = begun;
        if let (Some(i), Op::Run) = (self.place(work), work.op) {
            self.starts += 1;
            let order = self.starts;
            if let Some(step) = self.steps.get_mut(i) {
                (step.order, step.started_at) = (order, at);
            }
        }
        Ok(())
    }

    /// Goes on with another attempt: the task has another turn, or was given up and brought back before the saga has heard of that.
    fn taken_over(&mut self, work: &Work, begun: Begun) -> Applied {
        let before = self.begun_mut(work);
        if (before.task, before.turn) == (begun.task, begun.turn) {
            return Err(Illegal::Known);
        }
        *before = begun;
        Ok(())
    }

    fn begun_mut(&mut self, work: &Work) -> &mut Begun {
        let i = self.place(work);
        let of_step = i.and_then(|i| self.steps.get_mut(i)?.begun.get_mut(work.op as usize));
        of_step.unwrap_or(&mut self.whole_begun)
    }

    /// Who has some work, since it was last started.
    pub(crate) fn begun(&self, work: &Work) -> Begun {
        let of_step = self.place(work).and_then(|i| self.steps.get(i)?.begun.get(work.op as usize));
        of_step.copied().unwrap_or(self.whole_begun)
    }

    fn done(&mut self, work: &Work, output: &Value, at: Timestamp) -> Applied {
        if self.is_too_late_for_pivot(work) {
            return Err(not(format!(
                "the saga is being undone: {} cannot become the point of no return any more",
                work.place()
            )));
        }
        let doing = self.doing(work)?;
        if !doing.is_open() {
            return Err(Illegal::Known);
        }
        *doing = Doing::Done;
        let (Some(i), Op::Run) = (self.place(work), work.op) else { return Ok(()) };
        if let Some(step) = self.steps.get_mut(i) {
            step.output = Some(Arc::new(output.clone()));
            step.done_at = at;
        }
        if let Some(StepKind::WaitFor { signal, .. }) = self.flow.step(i).map(|step| &step.kind)
            && let Some(taken) = self.signals.iter().position(|(name, _)| name == signal)
        {
            self.signals.remove(taken);
        }
        if self.flow.pivot == Some(i) {
            (self.committed, self.back) = (true, None);
        }
        Ok(())
    }

    /// Whether this is the run of the pivot, which failed, and something is being undone, be it of another step. Whoever calls it done
    /// now would have the saga go forward over what is being taken back.
    fn is_too_late_for_pivot(&self, work: &Work) -> bool {
        self.is_pivot(work) && self.at(work).is_some_and(Doing::has_failed) && self.has_begun_undoing()
    }

    /// Whether any undo has begun since it last went forward.
    fn has_begun_undoing(&self) -> bool {
        self.whole != Doing::Idle || self.steps.iter().any(|step| step.undo != Doing::Idle)
    }

    fn failed(&mut self, work: &Work, failed: Doing) -> Applied {
        let doing = self.doing(work)?;
        if *doing != Doing::Started {
            return Err(Illegal::Known);
        }
        *doing = failed;
        if let Some(step) = self.place(work).and_then(|i| self.steps.get_mut(i)) {
            step.keep_in_doubt(work.op);
        }
        // Whether the point of no return is passed is not known: that is for a person, whoever wanted to go back.
        let pivot = self.place(work).filter(|i| self.flow.pivot == Some(*i) && work.op == Op::Run);
        if pivot.is_some_and(|i| self.is_undecidable(i)) {
            self.back = None;
        }
        Ok(())
    }

    fn skipped(&mut self, work: &Work) -> Applied {
        let doing = self.doing(work)?;
        if !doing.is_open() {
            return Err(not(format!("{} is not under way and has not failed", work.place())));
        }
        *doing = Doing::Skipped;
        self.committed |= self.is_pivot(work) && self.back.is_none();
        Ok(())
    }

    fn time_up(&mut self, work: &Work) -> Applied {
        let waits = self.place(work).and_then(|i| self.flow.step(i)).is_some_and(|step| !step.is_called());
        let doing = self.doing(work)?;
        if !waits || *doing != Doing::Started {
            return Err(Illegal::Known);
        }
        *doing = Doing::Refused("time is up".into());
        Ok(())
    }

    fn signal(&mut self, name: &str, payload: &Value, key: Option<&str>) -> Applied {
        self.is_unheard(name, payload, key)?;
        let is_it = |step: &StepDef| matches!(&step.kind, StepKind::WaitFor { signal, .. } if signal == name);
        if !self.flow.steps().iter().any(is_it) {
            return Err(not(format!("no step waits for {name:?}")));
        }
        if self.signals.len() >= MOST_SIGNALS {
            return Err(not(format!("{MOST_SIGNALS} signals wait already for a step to hear them")));
        }
        self.signals.push((name.to_owned(), Arc::new(payload.clone())));
        key.into_iter().for_each(|key| _ = self.heard.insert(key.to_owned(), said(name, payload)));
        Ok(())
    }

    /// Whether it goes back over those who wait for this signal: nobody is left who could hear it, and what is said now is forgotten.
    pub(crate) fn is_deaf_to(&self, name: &str) -> bool {
        let waits = |i: &usize| match self.flow.step(*i).map(|step| &step.kind) {
            Some(StepKind::WaitFor { signal, .. }) => signal == name,
            _ => false,
        };
        let may_hear = |i: usize| self.steps.get(i).is_some_and(|step| !step.run.is_over());
        let (back, beside): (Vec<usize>, Vec<usize>) =
            (0..self.steps.len()).filter(waits).partition(|i| has(self.scope(), *i));
        !back.is_empty() && !beside.into_iter().any(may_hear)
    }

    /// Whether a signal was not said before under its key. The same one is known, also when the saga has ended; another one cannot be.
    pub(crate) fn is_unheard(&self, name: &str, payload: &Value, key: Option<&str>) -> Applied {
        match key.and_then(|key| self.heard.get(key)) {
            None => Ok(()),
            Some(before) if *before == said(name, payload) => Err(Illegal::Known),
            Some(_) => Err(not("another signal was sent under this key")),
        }
    }

    fn rollback(&mut self, to: Option<&str>) -> Applied {
        if self.committed {
            return Err(not("it is past its point of no return"));
        }
        let to = to.and_then(|name| self.flow.place(name));
        match &self.back {
            Some(Back { to: None }) => return Err(Illegal::Known),
            Some(_) if to.is_some() => return Err(not("it goes back already")),
            _ => self.back = Some(Back { to }),
        }
        Ok(())
    }

    fn next_round(&mut self) -> Applied {
        let Some(Back { to: Some(to) }) = self.back else { return Err(not("it does not go back to a step")) };
        if !self.is_undone() {
            return Err(not("not all is undone"));
        }
        self.round += 1;
        let again = self.flow.since(to);
        self.forget_signals();
        (0..self.steps.len()).filter(|i| has(again, *i)).for_each(|i| self.begin_anew(i));
        self.back = None;
        Ok(())
    }

    /// A step is as it was at first, in this round. What it has left behind is remembered.
    fn begin_anew(&mut self, i: usize) {
        let (is_gap, round) = (self.is_gap(i), self.round);
        if let Some(step) = self.steps.get_mut(i) {
            self.past.undid |= step.undo.is_over();
            self.past.gaps |= is_gap;
            *step = StepState::new(round);
        }
    }

    /// What was said before the new round is not meant for it; but what was taken since somebody else may hear it is kept for them.
    fn forget_signals(&mut self) {
        let mut signals = std::mem::take(&mut self.signals);
        signals.retain(|(name, _)| !self.is_deaf_to(name));
        self.signals = signals;
    }

    fn decided(&mut self) -> Applied {
        if self.committed || self.back.is_some() || !self.steps.iter().all(|s| s.run.is_over()) {
            return Err(not("not all steps are done"));
        }
        self.committed = true;
        Ok(())
    }

    /// What was undone begins anew; what had failed is tried again under its old name, as it may have had an effect. An undo that was
    /// left out undid nothing: its step is still done. One that may have had an effect is in old journals only: who asks now is told
    /// to settle that first ([`maybe_undone`](Self::maybe_undone)). The deadline, and the time of waits for a signal, count from now
    /// on, or the way forward would end at once.
    fn forward(&mut self, at: Timestamp) -> Applied {
        let busy = |s: &StepState| s.undo == Doing::Started || (self.back.is_some() && s.run == Doing::Started);
        if self.whole != Doing::Idle || self.steps.iter().enumerate().any(|(i, s)| self.is_called(i) && busy(s)) {
            return Err(not("something is still being stopped or undone"));
        }
        if self.back.is_none() && !self.steps.iter().any(|s| s.run.has_failed()) {
            return Err(not("it does go forward"));
        }
        self.round += 1;
        for i in 0..self.steps.len() {
            if self.steps.get(i).is_some_and(|step| step.undo == Doing::Done) {
                self.begin_anew(i);
            }
        }
        for step in &mut self.steps {
            for doing in [&mut step.run, &mut step.undo].into_iter().filter(|doing| doing.has_failed()) {
                *doing = Doing::Idle;
            }
            if step.undo == Doing::Skipped {
                (step.undo, step.undo_in_doubt) = (Doing::Idle, false);
            }
        }
        for (def, step) in self.flow.steps().iter().zip(&mut self.steps) {
            if matches!(def.kind, StepKind::WaitFor { .. }) && step.run == Doing::Started {
                step.started_at = at;
            }
        }
        (self.back, self.timed_from) = (None, at);
        Ok(())
    }
}

/// What a signal said, in short.
fn said(name: &str, payload: &Value) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(name.as_bytes()).update(b"\0");
    crate::new_task::hash_canonical(payload, &mut hasher);
    hasher.finalize().as_bytes().first_chunk().copied().unwrap_or_default()
}

pub(crate) fn has(steps: Steps, i: usize) -> bool {
    steps >> i & 1 == 1
}
