//! The outbox table and what becomes of its rows. This folder knows neither server.

pub mod event_ids;
pub mod headers;
pub mod record;
pub mod relation;
pub mod row;
pub mod template;
