//! Telling people: real mails to a real mail server (`scripts/smtp-sink`), real webhooks, on each database.

#[path = "../store/harness.rs"]
#[allow(dead_code, reason = "shared with the store's suite")]
mod harness;

mod config;
mod engine;
mod hook;
mod mail;
mod notices;
mod reminders;
mod sink;
mod webhook;
