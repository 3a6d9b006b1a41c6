//! gt-client
