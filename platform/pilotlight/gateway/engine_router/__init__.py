"""Router component: strategies over the endpoints of one service."""
