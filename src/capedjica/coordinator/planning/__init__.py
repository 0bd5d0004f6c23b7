"""Planning: releases, noise, cost and predicted quality of a study before it runs."""
