//! What people read: one message for many notices.
//!
//! Pure: notices in, text out. However many there are, the message stays small: the methods with the most tasks, of each
//! how many, the first and last id and the newest errors. Everything that comes from tasks is cut and put on one line.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;

use crate::clock::Timestamp;
use crate::store::{Notice, Reminder};
use crate::task::storable;

/// A message for people, and for programs that read webhooks.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Message {
    /// One line.
    pub subject: String,
    /// Plain text.
    pub text: String,
    /// The same as JSON, for webhooks of the generic format.
    pub details: serde_json::Value,
}

impl Message {
    /// The same for the same message: what a receiver can recognise a repeated one by.
    pub(super) fn id(&self) -> String {
        let hash = blake3::hash(format!("{}\n{}\n{}", self.subject, self.text, self.details).as_bytes());
        format!("msg_{}", hash.to_hex().get(..32).unwrap_or_default())
    }

    /// A message to see whether a channel works. It says when it was made: receivers that know a message by its [`id`](Self::id)
    /// would drop the next test as one that they have.
    pub(super) fn test(channel: &str, now: Timestamp) -> Self {
        Self {
            subject: "[redrive] test".into(),
            text: format!(
                "This is a test of the channel {channel}. Notices of tasks that keep failing will come here.\n"
            ),
            details: serde_json::json!({ "test": true, "at": now }),
        }
    }
}

/// Methods that are shown; the others are counted.
const METHODS: usize = 20;
/// Of them in the subject.
const METHODS_IN_SUBJECT: usize = 3;
/// Newest errors that are shown of each method.
const ERRORS: usize = 3;
/// Events that are shown; the others are counted.
const EVENTS: usize = 50;
/// Bytes of a method's name that are shown.
const NAME: usize = 80;

/// The notices of one method.
struct Group<'n> {
    method: &'n str,
    notices: Vec<&'n Notice>,
}

/// One message for all of these notices and reminders.
pub(super) fn digest(notices: &[Notice], reminders: &[Reminder]) -> Message {
    let (events, notices): (Vec<Notice>, Vec<Notice>) = notices.iter().cloned().partition(Notice::is_event);
    let mut message = of_tasks(&notices, reminders);
    if !events.is_empty() {
        let is_all = notices.is_empty() && reminders.is_empty();
        message = if is_all { of_events(&events) } else { and_events(&message, &events) };
    }
    message
}

/// What happened, and nothing else.
fn of_events(events: &[Notice]) -> Message {
    let first = events.first().map(|event| one_line(&event.error.message, 120)).unwrap_or_default();
    let more = if events.len() > 1 { format!(" (and {} more)", events.len() - 1) } else { String::new() };
    Message {
        subject: format!("[redrive] {first}{more}"),
        text: events_text(events),
        details: serde_json::json!({ "events": events.iter().take(EVENTS).map(event_details).collect::<Vec<_>>() }),
    }
}

/// The same after a message about tasks.
fn and_events(message: &Message, events: &[Notice]) -> Message {
    let Message { subject, text, mut details } = of_events(events);
    if let (Some(all), Some(ours)) = (details.as_object_mut(), message.details.as_object()) {
        all.extend(ours.clone());
    }
    let also = subject.trim_start_matches("[redrive] ");
    Message { subject: format!("{}; {also}", message.subject), text: format!("{text}\n{}", message.text), details }
}

fn events_text(events: &[Notice]) -> String {
    let mut out = String::new();
    for event in events.iter().take(EVENTS) {
        _ = writeln!(out, "{} {}: {}", event.error.at, event.error.kind.as_str(), one_line(&event.error.message, 500));
    }
    if events.len() > EVENTS {
        _ = writeln!(out, "and {} more", events.len() - EVENTS);
    }
    out
}

fn event_details(event: &Notice) -> serde_json::Value {
    let error = &event.error;
    serde_json::json!({ "event": error.kind.as_str(), "of": event.method, "at": error.at, "said": error.message })
}

fn of_tasks(notices: &[Notice], reminders: &[Reminder]) -> Message {
    let (groups, waiting) = (groups(notices), by_method(reminders));
    let mut message = Message {
        subject: subject(notices.len(), &groups),
        text: text(notices.len(), &groups),
        details: details(&groups),
    };
    match (notices.is_empty(), reminders.is_empty()) {
        (_, true) => {}
        (true, false) => {
            message.subject = format!("[redrive] {}", waiting_subject(reminders.len(), &waiting));
            message.text = waiting_text(reminders.len(), &waiting);
        }
        (false, false) => {
            message.subject += &format!("; {}", waiting_subject(reminders.len(), &waiting));
            message.text = format!("{}\n{}", waiting_text(reminders.len(), &waiting), message.text);
        }
    }
    if !reminders.is_empty()
        && let Some(details) = message.details.as_object_mut()
    {
        details.insert("reminders".into(), waiting_details(reminders.len(), &waiting));
    }
    message
}

/// The letters of each method, the method with the most first; in each the longest dead first.
fn by_method(reminders: &[Reminder]) -> Vec<(&str, Vec<&Reminder>)> {
    let mut by_method: BTreeMap<&str, Vec<&Reminder>> = BTreeMap::new();
    for reminder in reminders {
        by_method.entry(&reminder.method).or_default().push(reminder);
    }
    let mut methods: Vec<_> = by_method.into_iter().collect();
    methods.sort_by_key(|(_, letters)| std::cmp::Reverse(letters.len())); // stable: equals by name
    for (_, letters) in &mut methods {
        letters.sort_by_key(|letter| (letter.dead_at, letter.task_id));
    }
    methods
}

/// `3 dead letters wait for a person: pay (2), refund (1)`
fn waiting_subject(count: usize, methods: &[(&str, Vec<&Reminder>)]) -> String {
    let shown = methods.iter().take(METHODS_IN_SUBJECT);
    let mut named: Vec<String> =
        shown.map(|(method, letters)| format!("{} ({})", one_line(method, NAME), letters.len())).collect();
    if methods.len() > METHODS_IN_SUBJECT {
        named.push(format!("{} more methods", methods.len() - METHODS_IN_SUBJECT));
    }
    format!("{} for a person: {}", letters_wait(count), named.join(", "))
}

fn letters_wait(n: usize) -> String {
    if n == 1 { "1 dead letter waits".into() } else { format!("{n} dead letters wait") }
}

fn waiting_text(count: usize, methods: &[(&str, Vec<&Reminder>)]) -> String {
    let mut out = format!("{} for a person.\n", letters_wait(count));
    for (method, letters) in methods.iter().take(METHODS) {
        _ = write!(out, "\n{}: {}\n", one_line(method, NAME), letters.len());
        for letter in letters.iter().take(ERRORS) {
            _ = writeln!(out, "  {}", waiting_line(letter));
        }
    }
    let others = methods.get(METHODS..).unwrap_or_default();
    if !others.is_empty() {
        let of: usize = others.iter().map(|(_, letters)| letters.len()).sum();
        _ = write!(out, "\nand {of} of {} more methods\n", others.len());
    }
    out += "\nPeople are reminded of a letter, less and less often, until someone redrives, resolves, discards or takes it over.\n";
    out
}

/// `42 order/7, reminder 2, dead as exhausted since 2026-02-05T12:00:00Z, seen, timeout: no answer`
fn waiting_line(letter: &Reminder) -> String {
    let business = letter.business.as_ref();
    let business = business.map_or(String::new(), |b| format!(" {}/{}", one_line(&b.kind, 50), one_line(&b.id, 100)));
    let seen = if letter.acknowledged_at.is_some() { ", seen" } else { "" };
    let said =
        |e: &crate::task::LastError| format!(", {}: {}", one_line(e.kind.as_str(), 100), one_line(&e.message, 200));
    let error = letter.error.as_ref().map_or(String::new(), said);
    let (id, n, reason, since) = (letter.task_id, letter.n, letter.dead_reason.as_str(), letter.dead_at);
    format!("{id}{business}, reminder {n}, dead as {reason} since {since}{seen}{error}")
}

fn waiting_details(count: usize, methods: &[(&str, Vec<&Reminder>)]) -> serde_json::Value {
    let shown = |(method, letters): &(&str, Vec<&Reminder>)| {
        let oldest: Vec<_> = letters.iter().take(ERRORS).collect();
        serde_json::json!({ "method": method, "letters": letters.len(), "oldest": oldest })
    };
    let methods: Vec<_> = methods.iter().take(METHODS).map(shown).collect();
    serde_json::json!({ "letters": count, "methods": methods })
}

/// By method, the most first; in each the newest first.
fn groups(notices: &[Notice]) -> Vec<Group<'_>> {
    let mut by_method: BTreeMap<&str, Vec<&Notice>> = BTreeMap::new();
    for notice in notices {
        by_method.entry(&notice.method).or_default().push(notice);
    }
    let mut groups: Vec<Group<'_>> = by_method.into_iter().map(|(method, notices)| Group { method, notices }).collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.notices.len())); // stable: equals by name
    for group in &mut groups {
        group.notices.sort_by_key(|notice| std::cmp::Reverse((notice.error.at, notice.task_id)));
    }
    groups
}

impl Group<'_> {
    fn given_up(&self) -> usize {
        self.notices.iter().filter(|notice| notice.dead_reason.is_some()).count()
    }

    /// `10 tasks, 3 of them given up; ids 17 to 42`
    fn summary(&self) -> String {
        let mut said = tasks(self.notices.len());
        match self.given_up() {
            0 => {}
            n if n == self.notices.len() => said += ", given up",
            n => _ = write!(said, ", {n} of them given up"), // writing to a String cannot fail
        }
        match self.ids() {
            (Some(first), Some(last)) if first != last => said + &format!("; ids {first} to {last}"),
            _ => said,
        }
    }

    fn ids(&self) -> (Option<crate::TaskId>, Option<crate::TaskId>) {
        let ids = || self.notices.iter().map(|notice| notice.task_id);
        (ids().min(), ids().max())
    }
}

fn subject(count: usize, groups: &[Group<'_>]) -> String {
    let shown = groups.iter().take(METHODS_IN_SUBJECT);
    let mut methods: Vec<String> =
        shown.map(|group| format!("{} ({})", one_line(group.method, NAME), group.notices.len())).collect();
    if groups.len() > METHODS_IN_SUBJECT {
        methods.push(format!("{} more methods", groups.len() - METHODS_IN_SUBJECT));
    }
    let verb = if count == 1 { "keeps" } else { "keep" };
    format!("[redrive] {} {verb} failing: {}", tasks(count), methods.join(", "))
}

fn text(count: usize, groups: &[Group<'_>]) -> String {
    let verb = if count == 1 { "keeps" } else { "keep" };
    let mut out = format!("{} {verb} failing.\n", tasks(count));
    for group in groups.iter().take(METHODS) {
        _ = write!(out, "\n{}: {}\n", one_line(group.method, NAME), group.summary());
        for notice in group.notices.iter().take(ERRORS) {
            _ = writeln!(out, "  {}", line(notice));
        }
    }
    let others = groups.get(METHODS..).unwrap_or_default();
    if !others.is_empty() {
        let of = others.iter().map(|group| group.notices.len()).sum();
        _ = write!(out, "\nand {} of {} more methods\n", tasks(of), others.len());
    }
    out += "\nPeople are told of a task once, however long it goes on failing.\n";
    out
}

/// `42 order/7, attempt 4, timeout: no answer (2026-02-05T12:00:00Z)`
fn line(notice: &Notice) -> String {
    let business = notice.business.as_ref();
    let business = business.map_or(String::new(), |b| format!(" {}/{}", one_line(&b.kind, 50), one_line(&b.id, 100)));
    let end = notice.dead_reason.map_or(String::new(), |reason| format!(", given up as {}", reason.as_str()));
    let (kind, message) = (one_line(notice.error.kind.as_str(), 100), one_line(&notice.error.message, 200));
    let (id, attempt, at) = (notice.task_id, notice.attempts, notice.error.at);
    format!("{id}{business}, attempt {attempt}{end}, {kind}: {message} ({at})")
}

fn details(groups: &[Group<'_>]) -> serde_json::Value {
    let count = |groups: &[Group<'_>]| groups.iter().map(|group| group.notices.len()).sum::<usize>();
    let others = groups.get(METHODS..).unwrap_or_default();
    let methods: Vec<_> = groups.iter().take(METHODS).map(method_details).collect();
    serde_json::json!({
        "tasks": count(groups), "methods": methods, "other_methods": others.len(), "other_tasks": count(others),
    })
}

fn method_details(group: &Group<'_>) -> serde_json::Value {
    let (first, last) = group.ids();
    serde_json::json!({
        "method": group.method, "tasks": group.notices.len(), "given_up": group.given_up(),
        "first_id": first, "last_id": last,
        "newest": group.notices.iter().take(ERRORS).collect::<Vec<_>>(),
    })
}

fn tasks(n: usize) -> String {
    if n == 1 { "1 task".into() } else { format!("{n} tasks") }
}

/// Text of others on one line, at most `max` bytes of it.
fn one_line(text: &str, max: usize) -> String {
    let line: String = storable(text, max).chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.len() > max { line + "…" } else { line }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settle::DeadReason;
    use crate::task::{Business, LastError};
    use crate::{Kind, TaskId};

    fn notice(id: i64, method: &str, message: &str) -> Notice {
        let at = Timestamp::from_millis(1_770_292_800_000 + id);
        Notice {
            task_id: TaskId::from_i64(id),
            method: method.into(),
            business: None,
            attempts: 4,
            error: LastError { kind: Kind::from("timeout".to_owned()), message: message.into(), at },
            dead_reason: None,
            created_at: at,
            sent_to: Vec::new(),
        }
    }

    #[test]
    fn a_digest_groups_by_method_and_shows_the_newest() {
        let mut notices: Vec<_> = (1..=10).map(|id| notice(id, "pay", &format!("no answer {id}"))).collect();
        notices.extend([notice(11, "refund", "refused"), notice(12, "refund", "refused")]);
        notices[9].business = Some(Business { kind: "order".into(), id: "7".into() });
        notices[8].dead_reason = Some(DeadReason::Exhausted);
        let message = digest(&notices, &[]);
        assert_eq!(message.subject, "[redrive] 12 tasks keep failing: pay (10), refund (2)");
        let (ten, nine) = (notices[9].task_id, notices[8].task_id);
        let expected = format!(
            "pay: 10 tasks, 1 of them given up; ids {} to {ten}\n  {ten} order/7, attempt 4, timeout: no answer 10 \
             (2026-02-05T12:00:00.01Z)\n  {nine}, attempt 4, given up as exhausted, timeout: no answer 9 ",
            notices[0].task_id
        );
        assert!(message.text.contains(&expected), "{}", message.text);
        assert!(message.text.contains("no answer 8") && !message.text.contains("no answer 7"), "three of each");
        assert_eq!(message.details["methods"][0]["given_up"], 1);
        assert_eq!(message.details["methods"][0]["newest"][0]["business_id"], "7");
    }

    #[test]
    fn each_test_is_a_message_of_its_own() {
        let id = |channel: &str, ms: i64| Message::test(channel, Timestamp::from_millis(ms)).id();
        assert_eq!(id("ops", 1), id("ops", 1), "sent again, it is the same");
        assert_ne!(id("ops", 1), id("ops", 2), "tested again, it is another");
        assert_ne!(id("ops", 1), id("dev", 1));
    }

    #[test]
    fn one_task_is_one_task() {
        let message = digest(&[notice(1, "pay", "no answer")], &[]);
        assert_eq!(message.subject, "[redrive] 1 task keeps failing: pay (1)");
        assert!(message.text.contains("pay: 1 task\n"), "{}", message.text);
    }

    #[test]
    fn a_message_stays_small_whatever_is_in_it() {
        let long = "漢\n\r\0".repeat(2000);
        let notices: Vec<_> = (0..5_000).map(|id| notice(id, &format!("{}{long}", id % 500), &long)).collect();
        let message = digest(&notices, &[]);
        assert!(message.subject.len() < 400 && !message.subject.contains(char::is_control), "{}", message.subject);
        assert!(message.text.len() < 40_000, "{}", message.text.len());
        assert!(message.text.contains("and 4800 tasks of 480 more methods"), "{}", message.text);
    }
}
