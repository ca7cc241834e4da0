//! The outbox tables and what becomes of their rows. This folder knows neither server.

pub mod arrivals;
pub mod cloudevents;
pub mod envelope;
pub mod event_ids;
pub mod headers;
pub mod json;
pub mod mapping;
pub mod message;
pub mod moment;
mod payload;
pub mod prune;
pub mod record;
pub mod relation;
pub mod route;
pub mod row;
pub mod template;
mod tracing_context;
pub mod types;
pub mod usable;

#[cfg(test)]
pub mod tests;
