//! What a saga may do and what it must do, told a second time and as plainly as it can be: rules that a journal is held against.
//!
//! It knows the definition and the journal, and asks none of the code that is tested. [`Reference::allows`] says whether an event may
//! come next, and [`Reference::at_rest`] what must not be the case when no event follows: that something which could begin has not, or
//! that a time which is up has been passed over.

use std::collections::BTreeMap;

use crate::clock::Timestamp;

use super::{
    Compensation, Definition, Event, OnUndoFailure, Op, SagaState, StepDef, StepKind, UndoKind, WhenUp, Why, Work,
};

/// How something went so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum How {
    #[default]
    No,
    Open,
    Done,
    Skipped,
    Refused,
    Unknown,
    Lost,
}

use How::{Done, Lost, No, Open, Refused, Skipped, Unknown};

impl How {
    fn is_over(self) -> bool {
        matches!(self, Done | Skipped)
    }

    fn has_failed(self) -> bool {
        matches!(self, Refused | Unknown | Lost)
    }
}

#[derive(Clone, Debug)]
struct Facts {
    round: u32,
    run: How,
    undo: How,
    confirm: How,
    /// Its run was given up in this round, and nobody knew what came of it.
    was_unknown: bool,
    /// The how manyth run it was that began.
    nth: usize,
    began: Timestamp,
    done: Timestamp,
}

impl Facts {
    fn new(round: u32) -> Self {
        let never = Timestamp::EPOCH;
        Self { round, run: No, undo: No, confirm: No, was_unknown: false, nth: 0, began: never, done: never }
    }
}

/// What is known of a saga from its journal.
#[derive(Clone, Debug)]
pub(super) struct Reference {
    definition: Definition,
    steps: Vec<Facts>,
    whole: How,
    timed_from: Timestamp,
    /// Whether it goes back, and to which step.
    back: Option<Option<usize>>,
    committed: bool,
    /// Signals that were not heard yet.
    signals: Vec<String>,
    keys: BTreeMap<String, String>,
    rounds: u32,
    runs: usize,
    /// Something was not undone, or was, in an earlier round.
    gap: bool,
    undid: bool,
    has_begun: bool,
    ended: Option<SagaState>,
}

impl Reference {
    pub(super) fn new(definition: &Definition) -> Self {
        Self {
            definition: definition.clone(),
            steps: definition.steps.iter().map(|_| Facts::new(1)).collect(),
            whole: No,
            timed_from: Timestamp::EPOCH,
            back: None,
            committed: false,
            signals: Vec::new(),
            keys: BTreeMap::new(),
            rounds: 1,
            runs: 0,
            gap: false,
            undid: false,
            has_begun: false,
            ended: None,
        }
    }

    fn def(&self, i: usize) -> &StepDef {
        &self.definition.steps[i]
    }

    fn all(&self) -> impl Iterator<Item = usize> + Clone + use<> {
        0..self.steps.len()
    }

    fn place(&self, name: &str) -> usize {
        self.all().find(|i| self.def(*i).name == name).unwrap()
    }

    fn is_call(&self, i: usize) -> bool {
        matches!(self.def(i).kind, StepKind::Call | StepKind::Reserve { .. })
    }

    fn is_reserve(&self, i: usize) -> bool {
        matches!(self.def(i).kind, StepKind::Reserve { .. })
    }

    /// Whether `i` is `first` or comes after it, over however many steps.
    fn follows(&self, i: usize, first: usize) -> bool {
        i == first || self.def(i).after.iter().any(|before| self.follows(self.place(before), first))
    }

    /// Whether it belongs to what the saga goes back over.
    fn in_scope(&self, i: usize) -> bool {
        self.back.is_some_and(|to| to.is_none_or(|to| self.follows(i, to)))
    }

    fn how(&self, work: &Work) -> How {
        let Some(name) = &work.step else { return self.whole };
        let step = &self.steps[self.place(name)];
        match work.op {
            _ if step.round != work.round => Skipped, // of an earlier round: nobody wants to hear of it
            Op::Run => step.run,
            Op::Undo => step.undo,
            Op::Confirm => step.confirm,
        }
    }

    fn happened(&self, i: usize) -> bool {
        matches!(self.steps[i].run, Done | Unknown | Lost)
    }

    /// Whether nothing is left to be done before it. That a step is done does not say so of those before that one.
    fn is_ready(&self, i: usize) -> bool {
        let is_over = |before: usize| self.steps[before].run.is_over() && self.is_ready(before);
        self.def(i).after.iter().all(|before| is_over(self.place(before)))
    }

    /// To go on or to go back could both be wrong.
    fn is_in_doubt(&self, i: usize) -> bool {
        let run = self.steps[i].run;
        !self.committed && (run == Lost || run == Unknown && self.def(i).undo == UndoKind::Irreversible)
    }

    fn has_doubts(&self) -> bool {
        self.all().any(|i| self.is_in_doubt(i))
    }

    /// Whether its undo is, or will be, called for.
    fn is_owed(&self, i: usize) -> bool {
        self.in_scope(i) && self.happened(i) && self.def(i).undo == UndoKind::Compensate && self.is_call(i)
    }

    /// Whether its way back is not over yet.
    fn is_left(&self, i: usize) -> bool {
        let runs = self.in_scope(i) && self.is_call(i) && self.steps[i].run == Open;
        let by_itself = self.definition.compensate_with.is_none();
        runs || (by_itself && self.is_owed(i) && !self.steps[i].undo.is_over())
    }

    fn is_undone(&self) -> bool {
        let owed = self.definition.compensate_with.is_some() && self.all().any(|i| self.is_owed(i));
        !self.all().any(|i| self.is_left(i)) && (!owed || self.whole.is_over())
    }

    fn is_gap(&self, i: usize) -> bool {
        self.steps[i].undo == Skipped || (self.happened(i) && self.def(i).undo == UndoKind::Irreversible)
    }

    fn pivot_runs(&self) -> bool {
        self.all().any(|i| self.def(i).pivot && self.steps[i].run == Open)
    }

    /// When its time is up: that of a wait which has begun, or of a reservation that is made.
    fn up(&self, i: usize) -> Option<Timestamp> {
        let step = &self.steps[i];
        match &self.def(i).kind {
            StepKind::Sleep { time } if step.run == Open => Some(step.began + *time),
            StepKind::WaitFor { timeout, .. } if step.run == Open => timeout.map(|time| step.began + time),
            StepKind::Reserve { ttl, .. } if step.run == Done && self.is_timed() => Some(step.done + *ttl),
            _ => None,
        }
    }

    fn deadline(&self) -> Option<Timestamp> {
        self.definition.deadline.filter(|_| self.is_timed()).map(|time| self.timed_from + time)
    }

    /// Whether it goes back by itself if there is a reason.
    fn may_turn(&self) -> bool {
        self.back.is_none() && !self.committed && !self.has_doubts()
    }

    /// Whether it does so when a time is up: not while a person has what is in doubt tried again.
    fn is_timed(&self) -> bool {
        let again = |i: usize| {
            self.steps[i].run == Open && self.steps[i].was_unknown && self.def(i).undo == UndoKind::Irreversible
        };
        self.may_turn() && !self.all().any(again)
    }

    fn back_to(&self, i: usize) -> Option<&str> {
        match &self.def(i).kind {
            StepKind::WaitFor { when_up: WhenUp::BackTo(to), .. } => Some(to),
            StepKind::Reserve { when_up: WhenUp::BackTo(to), .. } => Some(to),
            _ => None,
        }
    }

    fn has_signal(&self, i: usize) -> bool {
        matches!(&self.def(i).kind, StepKind::WaitFor { signal, .. } if self.signals.contains(signal))
    }

    /// Whether this may be the next event.
    pub(super) fn allows(&self, event: &Event, at: Timestamp) -> bool {
        if self.ended.is_some() || self.has_begun == (*event == Event::Began) {
            return false;
        }
        match event {
            Event::Began | Event::Input { .. } => true,
            Event::Started { work, .. } => self.may_start(work),
            Event::Done { work, by, .. } => self.may_be_done(work, by.is_some(), at),
            Event::Failed { work, .. } | Event::Lost { work } => self.how(work) == Open,
            Event::Skipped { work, .. } => self.how(work) == Open || self.how(work).has_failed(),
            Event::TimeUp { work } => {
                let i = self.place(work.step.as_ref().unwrap());
                self.how(work) == Open && self.up(i).is_some_and(|up| up <= at) && !self.has_signal(i)
            }
            Event::Signal { name, key, .. } => {
                let is_new = key.as_ref().is_none_or(|key| !self.keys.contains_key(key));
                let waits = |i| matches!(&self.def(i).kind, StepKind::WaitFor { signal, .. } if signal == name);
                is_new && self.all().any(waits)
            }
            Event::Rollback { why, to } => self.may_go_back(why, to.as_deref(), at),
            Event::Round => matches!(self.back, Some(Some(_))) && self.is_undone() && !self.pivot_runs(),
            Event::Decided => self.back.is_none() && !self.committed && self.all().all(|i| self.steps[i].run.is_over()),
            Event::Forward { .. } => self.may_go_forward(),
            Event::Ended { state, .. } => self.may_end(*state),
        }
    }

    fn may_start(&self, work: &Work) -> bool {
        let how = self.how(work);
        let Some(name) = &work.step else {
            let is_quiet = !self.all().any(|i| self.is_left(i));
            return how.has_failed() || (how == No && is_quiet && self.back == Some(None) && !self.pivot_runs());
        };
        let i = self.place(name);
        match work.op {
            // A person may have what failed tried again, for as long as it does not go back: past the pivot, or while another step is in doubt.
            Op::Run if how.has_failed() => self.back.is_none() && (self.committed || self.has_doubts()),
            Op::Run => how == No && self.back.is_none() && !self.has_doubts() && self.is_ready(i),
            Op::Confirm => {
                let is_reserved = self.committed && self.is_reserve(i) && self.steps[i].run == Done;
                is_reserved && (how == No || how.has_failed())
            }
            Op::Undo => self.is_owed(i) && (how.has_failed() || (how == No && self.is_its_turn(i))),
        }
    }

    /// Whether a step may be undone before the others that are left.
    fn is_its_turn(&self, i: usize) -> bool {
        let undo_failed = |j: usize| self.steps[j].undo.has_failed();
        let halted = self.definition.on_undo_failure == OnUndoFailure::Halt && self.all().any(undo_failed);
        let others: Vec<usize> = self.all().filter(|j| *j != i && self.is_left(*j) && !undo_failed(*j)).collect();
        let is_first = |j: &usize| self.def(*j).undo_first;
        let first = is_first(&i) || !others.iter().any(is_first);
        let mut alike = others.iter().filter(|j| is_first(j) == is_first(&i));
        let in_order = match self.definition.compensation {
            Compensation::Reverse => alike.all(|j| self.steps[*j].nth < self.steps[i].nth),
            Compensation::Graph => alike.all(|j| !self.follows(*j, i)),
            Compensation::Parallel => true,
        };
        !halted && first && in_order && !self.pivot_runs()
    }

    fn may_be_done(&self, work: &Work, by_person: bool, at: Timestamp) -> bool {
        let how = self.how(work);
        let Some(i) = work.step.as_ref().map(|name| self.place(name)) else { return how == Open || how.has_failed() };
        let is_up = match &self.def(i).kind {
            StepKind::Sleep { .. } => self.up(i).is_some_and(|up| up <= at),
            StepKind::WaitFor { .. } => self.has_signal(i),
            StepKind::Call | StepKind::Reserve { .. } => true,
        };
        // Nobody can pass the point of no return once anything is being undone.
        let is_taken_back = self.whole != No || self.steps.iter().any(|step| step.undo != No);
        let is_late = work.op == Op::Run && self.def(i).pivot && how.has_failed() && is_taken_back;
        (how == Open || how.has_failed()) && (is_up || by_person) && !is_late
    }

    fn may_go_back(&self, why: &Why, to: Option<&str>, at: Timestamp) -> bool {
        match why {
            Why::Asked { .. } => !self.committed && self.back != Some(None) && to.is_none(),
            Why::Deadline => self.deadline().is_some_and(|deadline| deadline <= at) && to.is_none(),
            Why::Failed { step, .. } => {
                let i = self.place(step);
                self.may_turn() && self.is_call(i) && self.steps[i].run.has_failed() && to.is_none()
            }
            Why::TimeUp { step } => {
                let i = self.place(step);
                let waited = !self.is_call(i) && self.steps[i].run == Refused;
                let is_up = waited || (self.is_reserve(i) && self.up(i).is_some_and(|up| up <= at));
                self.may_turn() && is_up && to == self.back_to(i)
            }
        }
    }

    fn may_go_forward(&self) -> bool {
        let is_busy = |i: usize| self.steps[i].undo == Open || (self.back.is_some() && self.steps[i].run == Open);
        let has_failed = self.all().any(|i| self.steps[i].run.has_failed());
        let is_held = self.all().any(|i| self.is_call(i) && is_busy(i));
        self.whole == No && !is_held && (self.back.is_some() || has_failed)
    }

    fn may_end(&self, state: SagaState) -> bool {
        let gap = self.gap || self.whole == Skipped || self.all().any(|i| self.is_gap(i));
        let undid = self.undid || self.whole.is_over() || self.all().any(|i| self.steps[i].undo.is_over());
        let is_back = self.back == Some(None) && self.is_undone() && !self.pivot_runs();
        match state {
            SagaState::Killed => true,
            SagaState::Succeeded => {
                let open =
                    |i: usize| self.is_reserve(i) && self.steps[i].run == Done && !self.steps[i].confirm.is_over();
                self.back.is_none() && self.all().all(|i| self.steps[i].run.is_over() && !open(i))
            }
            SagaState::CompensatedWithGaps => is_back && gap,
            SagaState::Compensated => is_back && !gap && undid,
            SagaState::Failed => is_back && !gap && !undid,
            _ => false,
        }
    }

    /// Notes an event that is allowed.
    pub(super) fn note(&mut self, event: &Event, at: Timestamp) {
        assert!(self.allows(event, at), "{event:?} at {at:?} may not be: {self:#?}");
        match event {
            Event::Began => (self.has_begun, self.timed_from) = (true, at),
            Event::Started { work, .. } => self.note_start(work, at),
            Event::Done { work, .. } => self.note_done(work, at),
            Event::Failed { work, refused: true, .. } => self.note_failure(work, Refused),
            Event::Failed { work, refused: false, .. } => self.note_failure(work, Unknown),
            Event::Lost { work } => self.note_failure(work, Lost),
            Event::Skipped { work, .. } => {
                self.set(work, Skipped);
                let is_pivot = work.step.as_ref().is_some_and(|name| self.def(self.place(name)).pivot);
                self.committed |= is_pivot && work.op == Op::Run && self.back.is_none();
            }
            Event::TimeUp { work } => self.set(work, Refused),
            Event::Signal { name, key, .. } => {
                self.signals.push(name.clone());
                key.iter().for_each(|key| _ = self.keys.insert(key.clone(), name.clone()));
            }
            Event::Rollback { to, .. } => self.back = Some(to.as_ref().map(|to| self.place(to))),
            Event::Round => self.note_round(),
            Event::Decided => self.committed = true,
            Event::Forward { .. } => self.note_forward(at),
            Event::Input { .. } => {}
            Event::Ended { state, .. } => self.ended = Some(*state),
        }
    }

    fn note_failure(&mut self, work: &Work, how: How) {
        let i = work.step.as_ref().map(|name| self.place(name));
        let was_unknown = i.is_some_and(|i| work.op == Op::Run && self.steps[i].was_unknown);
        self.set(work, if how == Refused && was_unknown { Unknown } else { how });
        if let (Some(i), Op::Run, true) = (i, work.op, how != Refused) {
            self.steps[i].was_unknown = true;
        }
        // Nobody knows whether there is a way back.
        if i.is_some_and(|i| work.op == Op::Run && self.def(i).pivot && self.is_in_doubt(i)) {
            self.back = None;
        }
    }

    fn set(&mut self, work: &Work, how: How) {
        let Some(name) = &work.step else { return self.whole = how };
        let i = self.place(name);
        match work.op {
            Op::Run => self.steps[i].run = how,
            Op::Undo => self.steps[i].undo = how,
            Op::Confirm => self.steps[i].confirm = how,
        }
    }

    fn note_start(&mut self, work: &Work, at: Timestamp) {
        self.set(work, Open);
        if work.op == Op::Run {
            self.runs += 1;
            let i = self.place(work.step.as_ref().unwrap());
            (self.steps[i].nth, self.steps[i].began) = (self.runs, at);
        }
    }

    fn note_done(&mut self, work: &Work, at: Timestamp) {
        self.set(work, Done);
        let (Some(name), Op::Run) = (&work.step, work.op) else { return };
        let i = self.place(name);
        self.steps[i].done = at;
        if let StepKind::WaitFor { signal, .. } = self.def(i).kind.clone()
            && let Some(heard) = self.signals.iter().position(|said| *said == signal)
        {
            self.signals.remove(heard);
        }
        if self.def(i).pivot {
            (self.committed, self.back) = (true, None);
        }
    }

    fn note_round(&mut self) {
        self.rounds += 1;
        let (again, others): (Vec<usize>, Vec<usize>) = self.all().partition(|i| self.in_scope(*i));
        let signal = |i: &usize| match &self.def(*i).kind {
            StepKind::WaitFor { signal, .. } => Some(signal.clone()),
            _ => None,
        };
        let wanted: Vec<String> = others.iter().filter(|i| !self.steps[**i].run.is_over()).filter_map(signal).collect();
        let stale: Vec<String> = again.iter().filter_map(signal).filter(|name| !wanted.contains(name)).collect();
        self.signals.retain(|said| !stale.contains(said));
        again.into_iter().for_each(|i| self.begin_anew(i));
        self.back = None;
    }

    fn note_forward(&mut self, at: Timestamp) {
        self.rounds += 1;
        for i in self.all() {
            match self.steps[i].undo {
                Done => self.begin_anew(i),
                Skipped | Refused | Unknown | Lost => self.steps[i].undo = No,
                No | Open => {}
            }
            if self.steps[i].run.has_failed() {
                self.steps[i].run = No;
            }
            if matches!(self.def(i).kind, StepKind::WaitFor { .. }) && self.steps[i].run == Open {
                self.steps[i].began = at;
            }
        }
        (self.back, self.timed_from) = (None, at);
    }

    fn begin_anew(&mut self, i: usize) {
        self.gap |= self.is_gap(i);
        self.undid |= self.steps[i].undo.is_over();
        self.steps[i] = Facts::new(self.rounds);
    }

    /// When something happens by itself, at the earliest.
    pub(super) fn next_time(&self) -> Option<Timestamp> {
        let is_under_way = self.ended.is_none() && self.back.is_none();
        self.all().filter_map(|i| self.up(i)).chain(self.deadline()).min().filter(|_| is_under_way)
    }

    /// Nothing follows by itself now: so nothing must be missing.
    pub(super) fn at_rest(&self, now: Timestamp) {
        match self.back {
            _ if self.ended.is_some() => {}
            Some(_) if self.pivot_runs() => {}
            Some(_) => self.rests_going_back(),
            None => self.rests_going_forward(now),
        }
    }

    fn rests_going_back(&self) {
        assert!(!self.is_undone(), "all is undone: {self:#?}");
        let open =
            |i: usize| self.steps[i].undo == Open || (self.in_scope(i) && self.is_call(i) && self.steps[i].run == Open);
        let failed = |i: usize| self.steps[i].undo.has_failed();
        let is_halted = self.definition.on_undo_failure == OnUndoFailure::Halt && self.all().any(failed);
        let is_busy = self.whole == Open || self.all().any(open);
        let left = || self.all().filter(|i| self.is_left(*i) && !failed(*i));
        let is_stuck = self.whole.has_failed() || is_halted || (self.all().any(failed) && left().next().is_none());
        assert!(is_busy || is_stuck, "it goes back and nothing is done for it: {self:#?}");
        let at_once = self.definition.compensation == Compensation::Parallel && !is_halted;
        let idle = |i: usize| self.steps[i].undo == No && self.steps[i].run != Open && self.is_its_turn(i);
        assert!(!at_once || !left().any(idle), "an undo could begin: {self:#?}");
    }

    fn rests_going_forward(&self, now: Timestamp) {
        let waits = |i: usize| self.steps[i].run == Open && self.has_signal(i);
        assert!(!self.all().any(waits), "a signal is not heard: {self:#?}");
        assert!(self.next_time().is_none_or(|time| now < time), "a time is up: {self:#?}");
        if self.has_doubts() {
            return; // for a person
        }
        let failed = self.all().any(|i| self.steps[i].run.has_failed());
        assert!(self.committed || !failed, "it does not go back: {self:#?}");
        let idle = |i: usize| self.steps[i].run == No && self.is_ready(i);
        assert!(!self.all().any(idle), "a step could begin: {self:#?}");
        let reserved = || self.all().filter(|i| self.is_reserve(*i) && self.steps[*i].run == Done);
        let unconfirmed = self.committed && reserved().any(|i| self.steps[i].confirm == No);
        assert!(!unconfirmed, "a reservation could be confirmed: {self:#?}");
        let all_run = self.all().all(|i| self.steps[i].run.is_over());
        let is_confirmed = reserved().all(|i| self.steps[i].confirm.is_over());
        assert!(!all_run || (self.committed && !is_confirmed), "all is done: {self:#?}");
    }

    /// How it stands, in one word.
    pub(super) fn word(&self) -> SagaState {
        let any = |is_so: &dyn Fn(&Facts) -> bool| self.steps.iter().any(is_so);
        let undo_failed = self.whole.has_failed() || (self.back.is_some() && any(&|s| s.undo.has_failed()));
        let no_way_on = self.committed && any(&|s| s.run.has_failed());
        let in_doubt = self.back.is_none() && self.has_doubts();
        let waits = self.all().any(|i| !self.is_call(i) && self.steps[i].run == Open);
        let works = self.all().any(|i| self.is_call(i) && self.steps[i].run == Open || self.steps[i].confirm == Open);
        match self.ended {
            Some(end) => end,
            None if undo_failed || no_way_on || in_doubt || any(&|s| s.confirm.has_failed()) => SagaState::Stuck,
            None if self.back.is_some() => SagaState::Compensating,
            None if waits && !works => SagaState::Waiting,
            None => SagaState::Running,
        }
    }

    /// Whether an attempt at this would be of use. Going back it would not, but for what runs and is not gone back over.
    pub(super) fn wants(&self, work: &Work) -> bool {
        let (how, i) = (self.how(work), work.step.as_ref().map(|name| self.place(name)));
        let is_open = self.ended.is_none() && (how == Open || how.has_failed());
        let stays = i.is_some_and(|i| how == Open && !self.in_scope(i));
        is_open
            && if work.op == Op::Undo {
                self.back.is_some()
            } else {
                work.op == Op::Confirm || self.back.is_none() || stays
            }
    }

    /// The runs that are to be stopped when it turns back.
    pub(super) fn to_be_stopped(&self) -> Vec<&str> {
        let stop = |i: &usize| self.in_scope(*i) && self.is_call(*i) && self.steps[*i].run == Open;
        self.all().filter(stop).map(|i| &*self.def(i).name).collect()
    }
}
