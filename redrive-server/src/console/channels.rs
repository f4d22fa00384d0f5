//! Channels: whether people can be told, what waits to be said to them, and whom they will be reminded of.

use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use redrive::notify::{Channel, NotifyConfig};
use redrive::store::{AuditEntry, ChannelState, DeadTask};
use redrive::{Clock, Timestamp, unbroken};
use serde_json::json;
use std::time::Duration;

use crate::server::App;
use crate::server::input::Names;
use crate::server::problem::{Answer, Problem};

use super::html::{self, Html};
use super::tasks::tag;
use super::visit::{Act, Frame, Said, Visit};
use super::words::{Words, fill};

/// What waits for a channel is counted so far.
const MOST_WAITING: u32 = 1_000;
/// Reminders that are shown, and of how long to come.
const MOST_REMINDERS: u32 = 50;
const AHEAD: Duration = Duration::from_secs(7 * 24 * 3600);

#[derive(Template)]
#[template(path = "channels.html")]
struct Page {
    f: Frame,
    channels: Vec<Row>,
    digest: String,
    remind: String,
    reminders: Vec<Reminder>,
    /// What a test has just found wrong: the channel, and what it said.
    failed: Option<(String, String)>,
}

struct Row {
    name: String,
    kind: &'static str,
    to: String,
    state: Html,
    class: &'static str,
    facts: Vec<(&'static str, Html)>,
    last_error: String,
}

struct Reminder {
    id: String,
    method: String,
    reason: &'static str,
    n: u32,
    next: Html,
    died: Html,
}

pub(super) async fn show(State(app): State<App>, visit: Visit) -> Answer<Response> {
    let page = page(&app, visit.frame, None).await?;
    Ok(page.f.show(&page))
}

async fn page(app: &App, f: Frame, failed: Option<(String, String)>) -> Answer<Page> {
    let (settings, now) = (app.settings(), app.clock.now());
    let notify = settings.notify.clone().unwrap_or_default();
    let states = app.store.channel_states().await?;
    let mut channels = Vec::new();
    for (name, channel) in &notify.channels {
        let state = states.iter().find(|state| state.name == *name);
        let waiting = waiting(app, name).await?;
        channels.push(row(name, channel, state, waiting, &f, now));
    }
    channels.sort_by_key(|row| row.class != "bad");
    let letters = app.store.letters_to_remind(now + AHEAD, MOST_REMINDERS).await?;
    Ok(Page {
        channels,
        digest: html::duration(notify.digest_interval, f.w),
        remind: html::duration(notify.remind_every, f.w),
        reminders: letters.iter().map(|letter| reminder(letter, f.w)).collect(),
        failed,
        f,
    })
}

/// Notices and reminders that a channel has not got yet.
async fn waiting(app: &App, name: &str) -> Answer<(usize, usize)> {
    let (notices, reminders) =
        tokio::try_join!(app.store.notices_for(name, MOST_WAITING), app.store.reminders_for(name, MOST_WAITING))?;
    Ok((notices.len(), reminders.len()))
}

fn row(
    name: &str,
    channel: &Channel,
    state: Option<&ChannelState>,
    (notices, reminders): (usize, usize),
    f: &Frame,
    now: Timestamp,
) -> Row {
    let w = f.w;
    let tries = state.map_or(0, |state| state.tries);
    let (class, shown) = match state {
        _ if tries > 0 => ("bad", tag("bad", &fill(w.channel_fails, &[&tries]))),
        Some(state) if state.sent > 0 => ("good", tag("good", w.channel_works)),
        _ => ("", tag("", w.channel_unused)),
    };
    let mut facts = Vec::new();
    if let Some(state) = state {
        facts.extend(state.sent_at.map(|at| (w.channel_last_ok, html::at_and_ago(at))));
        facts.push((w.channel_sent, Html(html::number(state.sent))));
        facts.extend(state.failed_at.map(|at| (w.channel_last_failed, html::at_and_ago(at))));
        facts.extend((state.next_at > now).then(|| (w.channel_rests, html::ago(state.next_at))));
    }
    let n = |n: usize| if n < MOST_WAITING as usize { n.to_string() } else { format!("{n}+") };
    let waits = fill(w.channel_waiting_n, &[&n(notices), &n(reminders)]);
    facts.push((w.channel_waiting, Html(html::escape(&waits))));
    Row {
        name: name.to_owned(),
        kind: if matches!(channel, Channel::Mail(_)) { w.channel_mail } else { w.channel_webhook },
        to: if f.is_operator() { channel.target() } else { String::new() },
        state: shown,
        class,
        facts,
        last_error: state.and_then(|state| state.last_error.clone()).unwrap_or_default(),
    }
}

fn reminder(letter: &DeadTask, w: &Words) -> Reminder {
    Reminder {
        id: letter.task.id.to_string(),
        method: letter.task.method.clone(),
        reason: w.reason(letter.reason),
        n: letter.remind_count,
        next: letter.next_remind_time.map(html::at_and_ago).unwrap_or_default(),
        died: html::ago(letter.dead_at),
    }
}

/// Sends a test message. What a channel says against it is shown at once; the audit has it, too.
pub(super) async fn test(State(app): State<App>, Names([name]): Names<1>, act: Act) -> Answer<Response> {
    let settings = app.settings();
    let channels = settings.notify.iter().flat_map(|notify| &notify.channels);
    let channel = channels.filter(|(known, _)| **known == name).map(|(_, channel)| channel.clone()).next();
    let channel = channel.ok_or_else(|| Problem::not_found("channel", &name))?;
    let only = NotifyConfig { channels: [(name.clone(), channel)].into(), ..NotifyConfig::default() };
    let mut entry = AuditEntry::new(&act.visit.who.name, "channel.test", &*name);
    let store = app.store.clone();
    let error = unbroken(async move {
        let error = only.send_test().await.into_iter().find_map(|(_, sent)| sent.err()).map(|e| e.to_string());
        entry.after = Some(json!({ "taken": error.is_none(), "error": error }));
        store.audit(&entry, Clock::system().now()).await.map(|_| error)
    });
    let error = error.await?;
    let frame = act.visit.frame;
    match error {
        None => Ok(frame.go("/channels", Said::ChannelTested, &name)),
        Some(error) => {
            let page = page(&app, frame, Some((name, error))).await?;
            Ok((StatusCode::BAD_GATEWAY, page.f.show(&page)).into_response())
        }
    }
}
