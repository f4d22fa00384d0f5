//! Telling people: a loop around [`Notifier::run_once`]. Every node has it; a lock sees to it that one sends at a time.
//!
//! A node without channels sends nothing and deletes nothing: notices and reminders wait, and it says so once.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::pause;
use crate::notify::Notifier;

use super::Shared;

/// How often is looked for notices; what comes within it is in one message.
const EVERY: Duration = Duration::from_secs(2);
/// The same for a node that cannot send them.
const SELDOM: Duration = Duration::from_secs(60);

pub(super) async fn run(shared: Arc<Shared>) {
    match shared.notifier.clone() {
        Some(notifier) => send(&shared, &notifier).await,
        None => complain(&shared).await,
    }
}

async fn send(shared: &Shared, notifier: &Notifier) {
    while waited(shared, EVERY).await {
        let me = shared.me.number().to_string();
        if shared.me.may_work()
            && let Err(e) = notifier.run_once(&me, shared.clock.now()).await
        {
            tracing::warn!(error = %e, "notices could not be read or marked; trying again");
        }
    }
}

async fn complain(shared: &Shared) {
    while waited(shared, SELDOM).await {
        if shared.store.has_news(shared.clock.now()).await.unwrap_or(false) {
            tracing::warn!(
                "there are notices or reminders of failing tasks, and this node has no channel to send them by"
            );
            return;
        }
    }
}

/// Whether we are still to go on.
async fn waited(shared: &Shared, time: Duration) -> bool {
    tokio::select! {
        () = pause(time) => true,
        () = shared.stopping.cancelled() => false,
    }
}
