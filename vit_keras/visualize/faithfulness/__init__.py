"""Tests of how faithful a map is, none of which needs anybody to look at one."""
