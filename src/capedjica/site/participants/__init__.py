"""Participants of a site: its cohort, the enrolment and the approved scans."""
