//! `redrive notify`: whether people can be reached.

use clap::Subcommand;
use redrive::Clock;
use serde_json::json;

use super::Config;
use super::failure::Failure;
use super::out::Out;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Send a test message through each channel of redrive.toml, now, and say whether it was taken.
    Test {
        /// Through this one only.
        channel: Option<String>,
        #[command(flatten)]
        config: Config,
        /// One JSON object a line.
        #[arg(long)]
        json: bool,
    },
}

impl Command {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let Self::Test { channel, config, json } = self;
        let none = || Failure::invalid("no channel is set up; see [notify.channels.…] in docs/guide/notices.md");
        let mut notify = config.load().map_err(Failure::from)?.notify.ok_or_else(none)?;
        if let Some(only) = &channel {
            notify.channels.retain(|name, _| name == only);
            if notify.channels.is_empty() {
                return Err(Failure::not_found(format!("there is no channel {only} in the settings")).into());
            }
        }
        let (out, mut failed) = (Out { json, now: Clock::system().now() }, 0);
        for (name, sent) in notify.send_test().await {
            let error = sent.err().map(|e| e.to_string());
            failed += usize::from(error.is_some());
            let text = error.as_ref().map_or_else(|| "taken".to_owned(), |e| format!("failed: {e}"));
            out.say(&json!({ "channel": name, "taken": error.is_none(), "error": error }), format!("{name}: {text}"))?;
        }
        if failed > 0 { Err(Failure::failed(format!("{failed} of the channels failed")).into()) } else { Ok(()) }
    }
}
